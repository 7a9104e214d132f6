/// What the generated functions of a stand-in do: nothing but to be logged once.
///
/// SIMCUDA_LOG=1 writes each name on stderr at its first call, SIMCUDA_LOG=FILE appends it to the file.
#pragma once

/// A function that computes on the card: success.
int simcuda_computed(const char* name);
/// The same for a function whose first argument is the library's handle: a kernel on the handle's stream.
int simcuda_computed_with(const char* name, void* handle);
/// A kernel on a stream: it takes time and does nothing.
void simcuda_launch(void* stream);
/// The stream of a handle: each library that has STREAMED functions defines it.
void* simcuda_stream_of(void* handle);
/// A function that would have to tell something: the library's own "not supported".
int simcuda_refused(const char* name, int refusal);
