// The line of Python that the calling thread is in, without Python's lock.
//
// A driver call comes from native code that has mostly given the interpreter's lock (GIL) up, and another thread that
// has it may wait for this one. Python's faulthandler needs no lock: in the handler of a signal it writes the stack of
// the thread that got the signal. simcuda/python registers it, and the thread sends itself the signal here.
#pragma once

#include <string>

namespace gpumem::simcuda {

/// `faulthandler.register(signal, file, all_threads=False)` was called.
void watch_python(int signal, int file);

/// "train.py:12 in step", of the first frame outside installed packages, else of the first one. Empty: Python is not
/// watched, or it has no frame on this thread. For one thread at a time.
std::string python_line();

}  // namespace gpumem::simcuda
