// Finds the line of Python that the calling thread is in, without Python's lock.
//
// Native code that calls the driver has usually released the interpreter's lock (GIL), and the thread that holds it may
// wait for this one. Python's faulthandler needs no lock: in a signal handler it writes the stack of the thread that
// got the signal. simcuda/python registers it, and this code sends the signal to its own thread.
#pragma once

#include <string>

namespace gpumem::simcuda {

/// Call after `faulthandler.register(signal, file, all_threads=False)`.
void watch_python(int signal, int file);

/// Returns "train.py:12 in step" for the first frame outside installed packages, else for the first frame. Empty if
/// Python is not watched or has no frame on this thread. One thread at a time.
std::string python_line();

}  // namespace gpumem::simcuda
