"""Chooses the policy where the user names none, translates PYTORCH_CUDA_ALLOC_CONF to gpumem's settings, and finds keys that have
no effect. Needs no torch."""
import re

#: PyTorch reads the first variable that is set.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# `key:value` or `key:[value,value]`; values in a list may contain colons.
_PAIR = re.compile(r"([^:,\[\]]+):(\[[^\]]*\]|[^,\[\]]*)")


def _pairs(text):
    """Returns keys and values. PyTorch checks them at the first use of a GPU."""
    return dict(_PAIR.findall("".join(text.split())))


def _is_in_force(key):
    """Whether a key applies with gpumem: PyTorch still allocates pinned memory, and the fraction is a limit."""
    return key.startswith("pinned_") or key == "per_process_memory_fraction"


#: PyTorch's own segments: what `empty_cache` returns is as without gpumem. In the shared steps of `growth`, gpumem's own
#: default, small tensors that stay keep much more from going back.
DEFAULT_POLICY = "caching"


def _has_backing(environment, given):
    """A backing is a parameter of other policies."""
    return "backing" in given or any(name.startswith("GPUMEM_BACKING") for name in environment)


def translate(environment, given):
    """Returns settings for gpumem, and a line that explains them ("" if there are none to explain).

    `given` are the settings of `enable()`. A policy in these or in the environment has precedence.
    """
    policy = environment.get("GPUMEM_POLICY", given.get("policy"))
    chosen, said = {}, []
    if policy is None and not _has_backing(environment, given):
        chosen = {"policy": DEFAULT_POLICY}
    variable = next((name for name in VARIABLES if name in environment), None)
    if variable is None:
        return chosen, ""
    pairs = _pairs(environment[variable])
    is_expandable = pairs.pop("expandable_segments", "False") == "True"
    without_effect = [key for key in pairs if not _is_in_force(key)]
    if is_expandable and policy is None:
        chosen = {"policy": "expandable"}
        said.append("expandable_segments:True selects the policy expandable (GPUMEM_POLICY names another)")
    elif is_expandable and str(policy).partition(":")[0] != "expandable":
        without_effect.insert(0, f"expandable_segments (the policy {policy} is named)")
    if without_effect:
        said.append("no effect with gpumem: " + ", ".join(without_effect))
    return chosen, f"gpumem.torch: {variable}: {'; '.join(said)}" if said else ""
