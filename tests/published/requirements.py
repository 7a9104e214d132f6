"""Prints what the named packages need and this environment lacks, without torch and NVIDIA's packages, one a line."""
import importlib.metadata as metadata
import re
import sys

LEFT_OUT = re.compile(r"torch$|triton|nvidia-")


def needs(name, seen):
    """The requirements of an installed package, and of theirs."""
    for text in metadata.requires(name) or []:
        requirement, _, marker = text.partition(";")
        found = re.match(r"([A-Za-z0-9_.-]+)(\[[^]]*\])?\s*(.*)", requirement.strip())
        other = re.sub(r"[-_.]+", "-", found[1]).lower()
        if "extra ==" in marker or LEFT_OUT.match(other) or other in seen or not applies(marker):
            continue
        seen.add(other)
        try:
            metadata.version(other)
            yield from needs(other, seen)
        except metadata.PackageNotFoundError:
            yield other + found[3].strip("() ").replace(" ", "")


def applies(marker):
    """For the markers that packages of this folder's tables have."""
    from pip._vendor.packaging.markers import Marker

    return not marker.strip() or Marker(marker.strip()).evaluate()


seen = set()
for package in sys.argv[1:]:
    print(*needs(package, seen), sep="\n")
