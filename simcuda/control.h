/* Controls the simulated driver: functions that its libcuda.so.1 exports beside the driver's.
 *
 * For programs that load the simulated driver and use its clock, its referee and its counts, in plain C, found with
 * dlsym. Each function has the meaning of the sim_device function of its name: the referee's apply to all devices, the
 * clock's and the counts' to device 0. */
#ifndef GPUMEM_SIMCUDA_CONTROL_H
#define GPUMEM_SIMCUDA_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a fresh driver state; all earlier handles become invalid. */
void simcuda_configure(int devices, uint64_t bytes, int host_memory, int referee);
/* From the next simcuda_configure on, cuMemAlloc occupies multiples of this (default 2 MiB), at least 512. */
void simcuda_set_granularity(uint64_t bytes);
void simcuda_use(void* stream, uint64_t lag_ns, uint64_t address, uint64_t bytes);
void simcuda_handed_out(uint64_t address, uint64_t bytes, void* stream);
void simcuda_given_back(uint64_t address);
/* Call if the referee cannot see this program's uses: the report gives the reason instead of a verdict. */
void simcuda_note_unseen(const char* why);
void simcuda_advance_by(uint64_t ns);
void simcuda_advance_to(uint64_t ns);
uint64_t simcuda_used_bytes(void);
uint64_t simcuda_peak_used_bytes(void);
uint64_t simcuda_hazards(void);
uint64_t simcuda_in_calls_ns(void);
/* Sets the place, a line of the program, of the hazards that have none. */
void simcuda_place_hazards(const char* place);
/* Returns the place of the index-th kept hazard, "" if unknown; null if there is no such hazard. */
const char* simcuda_hazard_place(uint64_t index);
/* Counts the kernels launched by the calling thread. */
uint64_t simcuda_kernels(void);
/* Call once Python's faulthandler writes a thread's stack into the file when the thread gets the signal. */
void simcuda_watch_python(int signal, int file);
/* Reads the memory of the card with that number (not ordinal). Returns 0, or 1 if the card is not visible here. */
int simcuda_card_memory(int card, uint64_t* total, uint64_t* used);
/* Whether the stream captures: its work then runs when the graph is launched. */
int simcuda_captures(void* stream);
/* Whether copies of that many bytes move values. */
int simcuda_keeps_values(uint64_t bytes);
/* Copy between the host and memory of a card for a library's kernel; do not count as reads of the program. Skip memory
 * that is not on a card. Loading returns whether the values are true. Storing null makes them unknown, read as zero. */
int simcuda_load_values(void* result, uint64_t address, uint64_t bytes);
void simcuda_store_values(uint64_t address, const void* values, uint64_t bytes, int is_true);
/* Sets the process's rank in a job; the largest job of its communicators counts. */
void simcuda_note_rank(int rank, int ranks);
/* Call when an operation between ranks failed because another rank had ended. */
void simcuda_note_lost_rank(void);
/* Allocates and frees a library's own memory on the current device. Returns a CUresult. */
int simcuda_charge_library(uint64_t* address, uint64_t bytes);
int simcuda_discharge_library(uint64_t address);
/* Call when the program requests memory by a function that a simulated library lacks. */
void simcuda_note_unsupported(const char* function);
/* Makes the n-th call of the function ("*": any function) from now on return `error`, once. */
void simcuda_fail(const char* function, unsigned nth, int error);
/* While paused, calls neither fail by plan nor count. */
void simcuda_pause_failures(int paused);
int simcuda_failure_planned(void);
/* Counts the calls of the function (a base name: cuMemAlloc); of all functions if null. */
uint64_t simcuda_calls(const char* function);
/* Call if the program's small operations are computed: from now on copies and fills of up to `kept_bytes` move bytes,
 * and memory has marks (driver/value_marks.hpp). */
void simcuda_compute_values(uint64_t kept_bytes);
/* Marks bytes: whether their values are true, and whether they are zeros that memory does not hold yet. */
void simcuda_mark_values(uint64_t address, uint64_t bytes, int computed, int zero_due);
int simcuda_values_are_true(uint64_t address, uint64_t bytes);
/* Writes the range's zeros that memory does not hold yet; call before reading the bytes. Returns whether all bytes are
 * true. */
int simcuda_write_due_zeros(uint64_t address, uint64_t bytes);
/* Enclose the kernels of an operation whose results the caller marks; per thread. Any other kernel makes all values
 * untrue. Calls nest. */
void simcuda_begin_operation(void);
void simcuda_end_operation(void);
/* Until simcuda_answer_no_reads, each copy of 1, 4 or 8 bytes from a card to the host by the calling thread returns
 * `count`, for an operation that reads back its result's size. */
void simcuda_answer_reads(int64_t count, int is_true);
void simcuda_answer_no_reads(void);
/* Whether any stream captures: its work does not run now. */
int simcuda_anything_captures(void);
/* Counts untrue indices that were changed to the range of their operation. */
void simcuda_note_clamped(uint64_t indices);
/* Writes one count for each kind of device call, in the order of gpumem::device_call; at most `kinds`. */
void simcuda_device_calls(uint64_t* counts, int kinds);

#ifdef __cplusplus
}
#endif

#endif
