// Stands in for libgpumem_preload.so: exports one name, by which a test can tell that it is there.
extern "C" int gpumem_stand_in_is_loaded() { return 1; }
