// Records the status of a process that leaves by _exit, as Python's multiprocessing does: only exit() runs handlers.
// Part of the simulated driver as a library only, where it replaces the C library's function.
#include <sys/syscall.h>
#include <unistd.h>

#include "run_recorder.hpp"

extern "C" {

void _exit(int status) {
  gpumem::simcuda::note_exit(status);
  for (;;) ::syscall(SYS_exit_group, status);
}

}  // extern "C"
