# Installs the shared library, the public headers, the CMake package (`find_package(gpumem CONFIG)`) and a pkg-config
# file. Both packages find their files relative to themselves, so an installed tree can be moved. Components: library,
# development, and tools for all that names none.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpumem)

install(TARGETS gpumem EXPORT gpumem_targets
        LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/gpumem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT gpumem_targets NAMESPACE gpumem:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gpumemConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/gpumemConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gpumemConfig.cmake ${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${pkgconfig_dir} /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/gpumem.pc.in ${PROJECT_BINARY_DIR}/gpumem.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gpumem.pc DESTINATION ${pkgconfig_dir} COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT library)

# Whether programs find the library is up to the dynamic linker's cache; a staged installation leaves that to the package.
configure_file(${PROJECT_SOURCE_DIR}/cmake/run_ldconfig.cmake.in ${PROJECT_BINARY_DIR}/run_ldconfig.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/run_ldconfig.cmake COMPONENT library)

# The Python package with all that it needs, in a folder `gpumem`: `cmake --install ... --component python --prefix` puts
# it into a folder of modules, and a wheel is made of the same (pyproject.toml). No other installation has it.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/gpumem DESTINATION . COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN "*.cpp" PATTERN "*.hpp" PATTERN "*.map" PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/gpumem DESTINATION gpumem/include COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES $<TARGET_FILE:gpumem> DESTINATION gpumem/lib RENAME libgpumem.so.0 COMPONENT python EXCLUDE_FROM_ALL)
foreach(target IN ITEMS gpumem_program gpumem_bench gpumem_preload)  # the tools, and what `gpumem run` preloads
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION gpumem/bin COMPONENT python EXCLUDE_FROM_ALL OPTIONAL
                              LIBRARY DESTINATION gpumem/lib COMPONENT python EXCLUDE_FROM_ALL OPTIONAL)
  endif()
endforeach()
# Extensions for the torch of these Pythons, so that `gpumem.torch.enable()` needs no compiler there (scripts/wheel).
set(GPUMEM_PREBUILT_FOR "" CACHE STRING "Pythons whose torch the Python package brings an extension for")
foreach(python IN LISTS GPUMEM_PREBUILT_FOR)
  install(CODE "execute_process(COMMAND \"\${CMAKE_COMMAND}\" -E env \"PYTHONPATH=\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\"
                  PYTHONDONTWRITEBYTECODE=1 \"${python}\" -c \"from gpumem.torch import _build; print(_build.prebuild())\"
                  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
