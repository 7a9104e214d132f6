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
check(0 "14 of 14 steps passed" --bin ${bin} --out ${results} --double --quick)
foreach(step gpu_tests costs train_growth towers claims latency compare conformance)
  file(READ ${results}/${step}.step.json text)
  string(JSON outcome GET "${text}" outcome)
  if(NOT outcome STREQUAL "passed")
    message(FATAL_ERROR "${step}: ${text}")
  endif()
endforeach()

file(WRITE ${bin}/train_mlp "#!/bin/sh\necho 'says \"no\"'\nexit 3\n")
file(REMOVE ${bin}/conformance_gpu)
check(1 "6 of 13 steps passed" --bin ${bin} --out ${results} --double --quick)
file(READ ${results}/train_growth.step.json text)
string(JSON tail GET "${text}" output_tail)
if(NOT tail STREQUAL "says \"no\"" OR NOT out MATCHES "conformance +skipped +0 s +conformance_gpu is not in")
  message(FATAL_ERROR "a broken program and a missing one: expected both told, got\n${out}${text}")
endif()

check(2 "'--nope' is not an option; expected .*" --nope)
check(2 "--bin needs a folder" --bin)
check(2 "expected a folder that --pack made" --bin ${results})
check(2 "expected a finished build" --pack ${bin} --from ${results})
