# Makes the Debian packages of what is built, unpacks them into one root, and uses them there: each file in the package that it
# belongs to, a project built against the development package, the tools run.

foreach(variable BUILD CONSUMER WORK COMPILER VERSION)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "deb_test: -D ${variable}=... is missing")
  endif()
endforeach()

file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_CPACK_COMMAND} --config ${BUILD}/CPackConfig.cmake -G DEB -B ${WORK}/packages
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

function(expect_matches what text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "${what} does not match '${pattern}':\n${text}")
  endif()
endfunction()

foreach(package libgpumem0 libgpumem-dev gpumem-tools)
  file(GLOB deb ${WORK}/packages/${package}_${VERSION}_*.deb)
  list(LENGTH deb count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "expected one package ${package} ${VERSION} in ${WORK}/packages, found '${deb}'")
  endif()
  execute_process(COMMAND dpkg-deb -x ${deb} ${WORK}/root COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND dpkg-deb -f ${deb} OUTPUT_VARIABLE fields COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND dpkg-deb -c ${deb} OUTPUT_VARIABLE files COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND dpkg-deb -I ${deb} OUTPUT_VARIABLE control COMMAND_ERROR_IS_FATAL ANY)
  expect_matches(${package} "${fields}" "Version: ${VERSION}")
  set(files_${package} "${files}")
  set(fields_${package} "${fields}")
  set(control_${package} "${control}")
endforeach()
expect_matches(libgpumem0 "${files_libgpumem0}" "/usr/lib/libgpumem\\.so\\.0 ")
expect_matches(libgpumem0 "${files_libgpumem0}" "/usr/lib/gpumem/libgpumem_preload\\.so")
expect_matches(libgpumem0 "${control_libgpumem0}" "triggers")
expect_matches(libgpumem-dev "${files_libgpumem-dev}" "/usr/include/gpumem/allocator\\.hpp")
expect_matches(libgpumem-dev "${files_libgpumem-dev}" "/usr/lib/libgpumem\\.so ")
expect_matches(libgpumem-dev "${fields_libgpumem-dev}" "Depends: [^\n]*libgpumem0 \\(= ${VERSION}\\)")
expect_matches(gpumem-tools "${files_gpumem-tools}" "/usr/bin/gpumem_bench")
# ldconfig makes a link for each SONAME that it finds. None may stand for the driver, which every program would then get.
find_program(LDCONFIG ldconfig PATHS /sbin /usr/sbin)
if(LDCONFIG)
  execute_process(COMMAND ${LDCONFIG} -n ${WORK}/root/usr/lib COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS ${WORK}/root/usr/lib/libcuda.so.1)
    message(FATAL_ERROR "ldconfig made usr/lib/libcuda.so.1 of a library of gpumem's")
  endif()
endif()
execute_process(COMMAND ${WORK}/root/usr/bin/gpumem run -- true COMMAND_ERROR_IS_FATAL ANY)
if(files_libgpumem0 MATCHES "/usr/(bin|include)/" OR files_gpumem-tools MATCHES "/usr/include/|/usr/lib/libgpumem")
  message(FATAL_ERROR "a file is in the wrong package:\n${files_libgpumem0}${files_gpumem-tools}")
endif()

execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/build -G Ninja -D CMAKE_CXX_COMPILER=${COMPILER}
                        -D CMAKE_PREFIX_PATH=${WORK}/root/usr COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/root/usr/bin/gpumem --version OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
expect_matches("gpumem --version" "${said}" "gpumem ${VERSION}")
# The bundled traces are found beside the program.
execute_process(COMMAND ${WORK}/root/usr/bin/gpumem_bench fit --policy growth
                        --trace ${WORK}/root/usr/share/gpumem/traces/serve.csv.gz
                OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
expect_matches("gpumem_bench fit" "${said}" "serve: 50674 operations")
