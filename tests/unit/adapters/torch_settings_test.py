"""gpumem.torch's reading of PYTORCH_CUDA_ALLOC_CONF. Needs no torch.

    PYTHONPATH=python python3 torch_settings_test.py
"""
import unittest

from gpumem.torch import _settings


DEFAULT = {"policy": "caching"}
# Those of torch 2.11 and 2.15: c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.h.
KEYS_OF_PYTORCH = (
    "backend", "expandable_segments", "expandable_segments_reserve", "expandable_segments_reserve_by_class",
    "garbage_collection_threshold", "graph_capture_record_stream_reuse", "large_segment_size_mb", "max_non_split_rounding_mb",
    "max_split_size_mb", "per_process_memory_fraction", "pinned_free_catch_all", "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads", "pinned_use_cuda_host_register", "release_lock_on_cudamalloc",
    "roundup_power2_divisions", "throw_on_cudamalloc_oom")


def translate(text, given=None, variable="PYTORCH_CUDA_ALLOC_CONF", **environment):
    return _settings.translate({variable: text, **environment}, given or {})


class Translate(unittest.TestCase):
    def test_says_nothing_without_settings(self):
        for environment in ({}, {"PYTORCH_CUDA_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}):
            self.assertEqual(_settings.translate(environment, {}), (DEFAULT, ""))

    def test_selects_pytorchs_segments_unless_a_policy_or_a_backing_is_named(self):
        for environment, given in (({"GPUMEM_POLICY": "growth"}, {}), ({"GPUMEM_BACKING": "plain"}, {}),
                                   ({"GPUMEM_BACKING_1": "mapped"}, {}), ({}, {"policy": "growth"}),
                                   ({}, {"backing": "mapped"})):
            self.assertEqual(_settings.translate(environment, given), ({}, ""))
        self.assertEqual(_settings.translate({"GPUMEM_LIMIT": "80%", "GPUMEM_POLICY_1": "growth"}, {"limit": "1GiB"}),
                         (DEFAULT, ""))

    def test_selects_expandable(self):
        for variable in _settings.VARIABLES:
            chosen, line = translate("expandable_segments:True", variable=variable)
            self.assertEqual(chosen, {"policy": "expandable"})
            self.assertIn(f"{variable}: expandable_segments:True selects the policy expandable", line)

    def test_reads_the_variable_that_pytorch_reads(self):
        chosen, _ = translate("expandable_segments:False", PYTORCH_ALLOC_CONF="expandable_segments:True")
        self.assertEqual(chosen, DEFAULT)

    def test_takes_the_last_of_equal_keys(self):
        self.assertEqual(translate("expandable_segments:True,expandable_segments:False")[0], DEFAULT)
        self.assertEqual(translate(" expandable_segments : False, expandable_segments : True ")[0], {"policy": "expandable"})

    def test_leaves_a_named_policy(self):
        for given, environment in (({"policy": "growth"}, {}), ({}, {"GPUMEM_POLICY": "growth"})):
            chosen, line = translate("expandable_segments:True", given, **environment)
            self.assertEqual(chosen, {})
            self.assertIn("no effect with gpumem: expandable_segments (the policy growth is named)", line)
        self.assertEqual(translate("expandable_segments:True", {"policy": "expandable:slack=5%"}), ({}, ""))

    def test_names_each_key_without_effect_once(self):
        chosen, line = translate("max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4],"
                                 "max_split_size_mb:64,backend:native,pinned_num_register_threads:8,"
                                 "per_process_memory_fraction:0.5")
        self.assertEqual(chosen, DEFAULT)
        self.assertTrue(line.endswith("no effect with gpumem: max_split_size_mb, roundup_power2_divisions, backend"), line)

    def test_says_nothing_of_keys_in_force(self):
        self.assertEqual(translate("pinned_use_cuda_host_register:True,per_process_memory_fraction:0.5"),
                         (DEFAULT, ""))

    def test_every_key_of_pytorch_is_in_force_selects_a_policy_or_is_named(self):
        for key in KEYS_OF_PYTORCH:
            chosen, line = translate(f"{key}:1")
            names = line.endswith(f"no effect with gpumem: {key}")
            in_force = key.startswith("pinned_") or key == "per_process_memory_fraction"
            self.assertEqual((names, in_force, key == "expandable_segments").count(True), 1, f"{key}: {line}")
            self.assertEqual(chosen, DEFAULT)

    def test_leaves_text_without_keys_to_pytorch(self):
        for text in (",", ":", "[", "expandable_segments", "[a:b", "::::"):
            self.assertEqual(translate(text)[0], DEFAULT, text)


if __name__ == "__main__":
    unittest.main()
