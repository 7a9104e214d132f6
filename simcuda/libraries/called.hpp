/// Called by the generated functions of a simulated library: they log their first call and do nothing else.
///
/// SIMCUDA_LOG=1 writes each name on stderr at its first call, SIMCUDA_LOG=FILE appends it to the file.
#pragma once

/// A function that computes on the card: returns success.
int simcuda_computed(const char* name);
/// As above, for a function whose first argument is the library's handle: simulates a kernel on the handle's stream.
int simcuda_computed_with(const char* name, void* handle);
/// Simulates a kernel on a stream: it takes time and does nothing.
void simcuda_launch(void* stream);
/// Returns the stream of a handle; each library with STREAMED functions defines it.
void* simcuda_stream_of(void* handle);
/// For a function that must return a result: returns the library's own "not supported".
int simcuda_refused(const char* name, int refusal);
