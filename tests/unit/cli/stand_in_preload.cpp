// Replaces libgpumem_preload.so: exports one symbol, by which a test detects that it is loaded.
extern "C" int gpumem_stand_in_is_loaded() { return 1; }
