# The layers and the one rule about them: a layer sees its own folder and those of the layers below, and no
# other, so an include that points upwards does not compile.

add_library(gpumem_build_flags INTERFACE)
target_compile_features(gpumem_build_flags INTERFACE cxx_std_20)
target_compile_options(gpumem_build_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor;-Wold-style-cast>"
  "$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-pedantic;-Wshadow;-Wconversion;-Wstrict-prototypes>"
  $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<BOOL:${GPUMEM_WARNINGS_AS_ERRORS}>>:-Werror>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>  # src/base/checked_mutex.hpp
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>  # CMake 3.25 takes nvcc's default to be that
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(GPUMEM_SANITIZE)
  target_compile_options(gpumem_build_flags INTERFACE
    -fsanitize=${GPUMEM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(gpumem_build_flags INTERFACE -fsanitize=${GPUMEM_SANITIZE})
  target_compile_definitions(gpumem_build_flags INTERFACE _GLIBCXX_ASSERTIONS)
else()
  target_compile_definitions(gpumem_build_flags INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
endif()

option(GPUMEM_UNITY "Compile several files as one: a third of the processor time for a whole build" OFF)

# gpumem_layer(NAME SOURCES files... [BELOW layers...] [LINK libraries...])
# An object library gpumem_<NAME> that sees the headers of the layers BELOW it, by their bare names, and no others. Sources in
# subfolders belong to the same layer.
function(gpumem_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;BELOW;LINK")
  set(target gpumem_${name})
  add_library(${target} OBJECT ${arg_SOURCES})
  # Clang gives a function the visibility of the namespace body that defines it, not of the one in the header; with it the
  # version script alone decides what the library exports.
  set(visibility hidden)
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    set(visibility default)
  endif()
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
                                             CXX_VISIBILITY_PRESET ${visibility} VISIBILITY_INLINES_HIDDEN ON
                                             UNITY_BUILD ${GPUMEM_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  # Nobody replaces a function inside the library: without this, position-independent code calls its own functions as
  # if somebody could, and inlines none.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
  # The models and conformance tests spend their time in these; with the sanitizers, other layers compile far longer at -O1.
  if(GPUMEM_SANITIZE AND name MATCHES "^(heap|streams|cache|pool)$")
    target_compile_options(${target} PRIVATE -O1)
  endif()
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
           $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(${target} PRIVATE gpumem_build_flags PUBLIC ${arg_LINK})
  foreach(source IN LISTS arg_SOURCES)
    cmake_path(GET source PARENT_PATH subfolder)
    if(subfolder)
      target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${subfolder}>)
    endif()
  endforeach()
  set(all_below ${arg_BELOW})
  foreach(below IN LISTS arg_BELOW)
    get_property(further GLOBAL PROPERTY GPUMEM_LAYERS_BELOW_${below})
    list(APPEND all_below ${further})
    target_include_directories(${target} PUBLIC
      $<TARGET_PROPERTY:gpumem_${below},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY GPUMEM_LAYERS ${target})
  list(REMOVE_DUPLICATES all_below)
  set_property(GLOBAL PROPERTY GPUMEM_LAYERS_BELOW_${name} ${all_below})
endfunction()

# gpumem_use_layers(TARGET layers...): links the objects of these layers and of those they stand on, and nothing else.
function(gpumem_use_layers target)
  set(layers ${ARGN})
  foreach(layer IN LISTS ARGN)
    get_property(below GLOBAL PROPERTY GPUMEM_LAYERS_BELOW_${layer})
    list(APPEND layers ${below})
  endforeach()
  list(REMOVE_DUPLICATES layers)
  foreach(layer IN LISTS layers)
    target_link_libraries(${target} PRIVATE gpumem_${layer})
  endforeach()
  target_link_libraries(${target} PRIVATE gpumem_build_flags fmt::fmt ZLIB::ZLIB Threads::Threads)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# gpumem_contain(TARGET): the linked file needs libc alone, of glibc 2.34 or later.
function(gpumem_contain target)
  set(symbols ${PROJECT_SOURCE_DIR}/src/adapters/preload/symbols/older_glibc.cpp)
  target_sources(${target} PRIVATE ${symbols})
  set_source_files_properties(${symbols} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc LINKER:--as-needed LINKER:--exclude-libs,ALL)
endfunction()
