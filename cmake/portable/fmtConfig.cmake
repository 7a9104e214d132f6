# fmt as headers alone, for scripts/portable: the distribution's library is of the machine that builds.
if(NOT TARGET fmt::fmt)
  add_library(fmt::fmt INTERFACE IMPORTED)
  find_path(FMT_HEADERS fmt/format.h REQUIRED)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
endif()
