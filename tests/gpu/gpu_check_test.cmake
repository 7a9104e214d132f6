# scripts/gpu_check over the doubles: everything passes; a program that is broken costs its own steps alone; bad words are
# refused. cmake -DBUILD=<build folder> -DSOURCE=<source tree> -P gpu_check_test.cmake

set(bin ${BUILD}/gpu_check_test/bin)
set(results ${BUILD}/gpu_check_test/results)

function(check expect last_line)
  execute_process(COMMAND ${SOURCE}/scripts/gpu_check ${ARGN} RESULT_VARIABLE outcome OUTPUT_VARIABLE out
                  ERROR_VARIABLE err)
  if(NOT outcome EQUAL expect OR NOT "${out}${err}" MATCHES "${last_line}\n$")
    message(FATAL_ERROR "gpu_check ${ARGN}\nended with ${outcome}, expected ${expect} and '${last_line}':\n${out}${err}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

check(0 "packed .*" --pack ${bin} --from ${BUILD})

# What the archive holds is enough: unpacked elsewhere, run with nothing but coreutils, bash and python3 in sight.
set(bare ${BUILD}/gpu_check_test/bare)
file(REMOVE_RECURSE ${bare})
file(MAKE_DIRECTORY ${bare}/path)
foreach(tool bash python3 [ cat cp cut dirname du echo env false head ln ls mkdir mktemp mv od printf pwd readlink rm sleep
             sort stat tail tee test timeout touch tr true uname uniq wc)
  find_program(found_${tool} ${tool} REQUIRED)
  file(CREATE_LINK ${found_${tool}} ${bare}/path/${tool} SYMBOLIC)
endforeach()
file(ARCHIVE_EXTRACT INPUT ${bin}.tar.gz DESTINATION ${bare})
execute_process(COMMAND env -i PATH=${bare}/path ${bare}/path/bash ${bare}/gpu_check/scripts/gpu_check --double --quick
                RESULT_VARIABLE outcome OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT outcome EQUAL 0 OR NOT "${out}" MATCHES "21 of 21 steps passed\n$" OR NOT "${err}" STREQUAL "")
  message(FATAL_ERROR "the archive in an empty environment ended with ${outcome}:\n${out}${err}")
endif()
# What cannot be shown without a card says so.
string(REGEX MATCHALL "[^\n]* skipped [^\n]*" not_run "${out}")
foreach(line IN LISTS not_run)
  if(NOT line MATCHES "needs a GPU: |takes too long for --quick")
    message(FATAL_ERROR "skipped without a reason that a card would remove: ${line}")
  endif()
endforeach()

foreach(step gpu_tests mapped_ipc mapped_address_range costs train_growth towers claims latency compare conformance)
  file(READ ${bare}/gpu_check/build/gpu_check_double/${step}.step.json text)
  string(JSON outcome GET "${text}" outcome)
  if(NOT outcome STREQUAL "passed")
    message(FATAL_ERROR "${step}: ${text}")
  endif()
endforeach()

file(WRITE ${bin}/train_mlp "#!/bin/sh\necho 'says \"no\"'\nexit 3\n")
file(REMOVE ${bin}/conformance_gpu)
check(1 "1 of 2 steps passed" --bin ${bin} --out ${results} --double --quick --steps gpu_tests,train_growth,conformance)
file(READ ${results}/train_growth.step.json text)
string(JSON tail GET "${text}" output_tail)
if(NOT tail STREQUAL "says \"no\"" OR NOT out MATCHES "conformance +skipped +0 s +conformance_gpu is not in")
  message(FATAL_ERROR "a broken program and a missing one: expected both told, got\n${out}${text}")
endif()

check(0 "2 of 2 steps passed" --bin ${bin} --out ${results} --double --quick --steps gpu_tests,costs)
check(1 "0 of 2 steps passed" --bin ${bin} --out ${results} --double --quick --steps gpu_tests,costs --time-limit 1)
if(NOT out MATCHES "costs +failed +0 s +no time is left of the 1 seconds")
  message(FATAL_ERROR "a time limit of one second: expected no step to begin, got\n${out}")
endif()
check(2 "'--nope' is not an option; expected .*" --nope)
check(2 "--bin needs a folder" --bin)
check(2 "--time-limit 'soon': expected seconds" --time-limit soon)
check(2 "expected names of steps with ',' between them" --steps "A B")
check(2 "expected a folder that --pack made" --bin ${results})
check(2 "expected a finished build" --pack ${bin} --from ${results})
