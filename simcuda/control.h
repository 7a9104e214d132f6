/* The world of the driver's double from outside: what libcuda.so.1 of the double exports beside the driver's functions.
 *
 * For programs that load the double as their driver and want its simulated clock, its referee and its counts, in plain
 * C, found with dlsym. The meaning of each is that of the sim_device function of its name: of all devices for the
 * referee, of device 0 for the clock and the counts. */
#ifndef GPUMEM_SIMCUDA_CONTROL_H
#define GPUMEM_SIMCUDA_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a fresh world; all handles of the previous one are invalid. */
void simcuda_configure(int devices, uint64_t bytes, int host_memory, int referee);
/* For worlds configured from now on: cuMemAlloc occupies multiples of this (default 2 MiB), at least 512. */
void simcuda_set_granularity(uint64_t bytes);
void simcuda_use(void* stream, uint64_t lag_ns, uint64_t address, uint64_t bytes);
void simcuda_handed_out(uint64_t address, uint64_t bytes, void* stream);
void simcuda_given_back(uint64_t address);
/* An allocator in front of the driver hands out the block in the program's call of `function` (a string that stays).
 * The referee checks that earlier uses come first: before work of the stream, or, for a block that any stream may use
 * at once, before the host's next call. Parts of the block may be handed out again by simcuda_handed_out. */
void simcuda_served(const char* function, uint64_t block, uint64_t bytes, void* stream, int any_stream);
/* The referee does not see the uses of this program: its report says why, and is no verdict. */
void simcuda_note_unseen(const char* why);
void simcuda_advance_by(uint64_t ns);
void simcuda_advance_to(uint64_t ns);
uint64_t simcuda_used_bytes(void);
uint64_t simcuda_peak_used_bytes(void);
uint64_t simcuda_hazards(void);
uint64_t simcuda_in_calls_ns(void);
/* What the referee found that has no place yet was found here: a line of the program. */
void simcuda_place_hazards(const char* place);
/* Of the index-th one kept, "" where none is known; null: there is no such. */
const char* simcuda_hazard_place(uint64_t index);
/* Launched by the calling thread. */
uint64_t simcuda_kernels(void);
/* Python's faulthandler writes the stack of a thread into the file when the thread gets the signal. */
void simcuda_watch_python(int signal, int file);
/* Of the card with that number (not ordinal): 0, or 1 where this process does not see it. */
int simcuda_card_memory(int card, uint64_t* total, uint64_t* used);
/* Whether the stream captures: its work is done when the graph is launched. */
int simcuda_captures(void* stream);
/* Whether copies of that many bytes move values. */
int simcuda_keeps_values(uint64_t bytes);
/* Copies between the host and memory of a card, as a library's kernel does: no read of the program's. Memory that is
 * not the card's is left out. Loading says whether the values are true; null values are unknown, and read as zero. */
int simcuda_load_values(void* result, uint64_t address, uint64_t bytes);
void simcuda_store_values(uint64_t address, const void* values, uint64_t bytes, int is_true);
/* The process is this rank of a job; the largest job of its communicators counts. */
void simcuda_note_rank(int rank, int ranks);
/* An operation between ranks failed, since another rank has ended. */
void simcuda_note_lost_rank(void);
/* Memory that a library takes for itself on the current device, and gives back: a CUresult. */
int simcuda_charge_library(uint64_t* address, uint64_t bytes);
int simcuda_discharge_library(uint64_t address);
/* An allocator in front of the driver refused a request of the program's on the device with that ordinal, for instance
 * at a limit of its own: `why`, one line, stands in the run's report beside the card's own refusals. */
void simcuda_note_refusal(int device, const char* function, uint64_t bytes, const char* why);
/* The program requested memory by a function that the double of a library does not have. */
void simcuda_note_unsupported(const char* function);
/* Number of undefined uses, counted with SIMCUDA_STRICT=report, which also prints them at exit. */
uint64_t simcuda_undefined_uses(void);
/* The n-th call of the function from now on returns `error`, and so does its context from then on. */
void simcuda_break_at(const char* function, unsigned nth, int error);
/* The n-th call of the function ("*": of any) from now on returns `error`, once. */
void simcuda_fail(const char* function, unsigned nth, int error);
/* While paused, calls neither fail by plan nor count. */
void simcuda_pause_failures(int paused);
int simcuda_failure_planned(void);
/* Calls of the function (a base name: cuMemAlloc) so far; of all functions if null. */
uint64_t simcuda_calls(const char* function);
/* Runs the destructors of user objects without references; otherwise they run some driver calls later. */
void simcuda_finish_destructors(void);
/* The caller computes the program's small operations itself: copies and fills of up to `kept_bytes` move bytes from now
 * on, and memory has marks (driver/value_marks.hpp). */
void simcuda_compute_values(uint64_t kept_bytes);
/* Of each of these bytes: whether its value is true, and whether it is a zero that memory does not hold yet. */
void simcuda_mark_values(uint64_t address, uint64_t bytes, int computed, int zero_due);
int simcuda_values_are_true(uint64_t address, uint64_t bytes);
/* Writes the zeros of the range that memory does not hold yet: before the caller reads the bytes. Returns whether all
 * of them are true. */
int simcuda_write_due_zeros(uint64_t address, uint64_t bytes);
/* Kernels that the calling thread launches in between are of an operation whose results the caller marks. After any
 * other kernel nothing is true. These nest. */
void simcuda_begin_operation(void);
void simcuda_end_operation(void);
/* Until simcuda_answer_no_reads, each copy of 1, 4 or 8 bytes from a card to the host, by the calling thread, is
 * `count`: an operation reads how large its result is. */
void simcuda_answer_reads(int64_t count, int is_true);
void simcuda_answer_no_reads(void);
/* Some stream captures: what it is given does not run now. */
int simcuda_anything_captures(void);
/* So many untrue indices were changed to what their operation accepts. */
void simcuda_note_clamped(uint64_t indices);
/* One count for each kind of device call, in the order of gpumem::device_call; at most `kinds` of them. */
void simcuda_device_calls(uint64_t* counts, int kinds);

#ifdef __cplusplus
}
#endif

#endif
