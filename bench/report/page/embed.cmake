# Run with -P while building: writes OUTPUT, a C++ source with each of FILES (name=path, separated by |) as bytes.
string(REPLACE "|" ";" FILES "${FILES}")
set(source "#include \"page_parts.hpp\"\nnamespace gpumem::bench::parts {\n")
foreach(each IN LISTS FILES)
  string(REGEX MATCH "^([a-z_]+)=(.+)$" matched "${each}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND source "static const unsigned char ${name}_bytes[] = {${bytes}};\n"
                       "const std::string_view ${name}{reinterpret_cast<const char*>(${name}_bytes), sizeof ${name}_bytes};\n")
endforeach()
string(APPEND source "}\n")
file(WRITE "${OUTPUT}" "${source}")
