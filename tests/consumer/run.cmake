# Installs the build, moves the tree, and builds and runs a consumer against what was moved.
# cmake -DBUILD=... -DWORK=... -DCXX=... -DLIBDIR=... -P run.cmake
function(run)
  cmake_parse_arguments(arg "" "OUTPUT" "COMMAND" ${ARGN})
  execute_process(COMMAND ${arg_COMMAND} OUTPUT_VARIABLE out ERROR_VARIABLE err
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${arg_COMMAND} ended with ${result}\n${out}\n${err}")
  endif()
  if(arg_OUTPUT)
    set(${arg_OUTPUT} "${out}" PARENT_SCOPE)
  endif()
endfunction()
function(expect_equal got wanted what)
  if(NOT "${got}" STREQUAL "${wanted}")
    message(SEND_ERROR "${what}: expected [${wanted}], got [${got}]")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(before "${WORK}/before")
set(tree "${WORK}/moved here/penstock")  # a space in the path, too
file(MAKE_DIRECTORY "${WORK}/moved here")
run(COMMAND ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${before}" --strip)
file(RENAME "${before}" "${tree}")

# ---- the tree ----------------------------------------------------------------------------------
file(GLOB_RECURSE files LIST_DIRECTORIES false "${tree}/*")
set(bytes 0)
foreach(file IN LISTS files)
  if(NOT IS_SYMLINK "${file}")
    file(SIZE "${file}" size)
    math(EXPR bytes "${bytes} + ${size}")
  endif()
  # Text that names a folder of the build would send users there.
  if(file MATCHES "\\.(cmake|pc|h|yaml)$")
    file(READ "${file}" text)
    foreach(place IN ITEMS "${BUILD}" "${WORK}")
      string(FIND "${text}" "${place}" at)
      if(NOT at EQUAL -1)
        message(SEND_ERROR "${file} names ${place}")
      endif()
    endforeach()
  endif()
  # Every header finds the headers that it includes.
  if(file MATCHES "\\.h$")
    file(STRINGS "${file}" includes REGEX "^#include \"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" header "${line}")
      if(NOT EXISTS "${tree}/include/penstock/${header}")
        message(SEND_ERROR "${file} includes ${header}, which is not installed")
      endif()
    endforeach()
  endif()
endforeach()
math(EXPR megabytes "${bytes} / 1000000")
message(STATUS "the tree has ${megabytes} MB")
if(NOT bytes LESS 60000000)
  message(SEND_ERROR "the tree has ${bytes} bytes, at most 60 MB are promised")
endif()

# What the loader takes: from the tree, or from the system's own C and C++ run time.
file(GLOB libraries "${tree}/${LIBDIR}/libpenstock*.so")
foreach(library IN LISTS libraries)
  if(library MATCHES "libpenstock_(cuda|nccl)")
    continue()  # the user's CUDA
  endif()
  run(COMMAND ldd "${library}" OUTPUT loaded)
  string(REPLACE "\n" ";" loaded "${loaded}")
  foreach(line IN LISTS loaded)
    if(line MATCHES "not found" OR (line MATCHES "=> (/[^(]*) \\(" AND
        NOT line MATCHES "${tree}/" AND
        NOT line MATCHES "lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s|resolv)\\.so"))
      message(SEND_ERROR "${library}: ${line} is not part of the tree")
    endif()
  endforeach()
endforeach()

# ---- a consumer by CMake -----------------------------------------------------------------------
get_filename_component(source "${CMAKE_CURRENT_LIST_DIR}" ABSOLUTE)
run(COMMAND ${CMAKE_COMMAND} -S "${source}" -B "${WORK}/build" "-DCMAKE_PREFIX_PATH=${tree}"
  "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(COMMAND ${CMAKE_COMMAND} --build "${WORK}/build")
run(COMMAND ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH "${WORK}/build/consumer" "${WORK}"
  OUTPUT out)
expect_equal("${out}" "1 3 3 7\n" "the consumer")

# ---- a consumer by pkg-config ------------------------------------------------------------------
find_program(pkgconfig pkg-config)
if(pkgconfig)
  set(ENV{PKG_CONFIG_PATH} "${tree}/${LIBDIR}/pkgconfig")
  run(COMMAND ${pkgconfig} --cflags --libs penstock OUTPUT flags)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(COMMAND "${CXX}" "${source}/main.cpp" -o "${WORK}/by_pkgconfig" ${flags}
    "-Wl,-rpath,${tree}/${LIBDIR}")
  run(COMMAND "${WORK}/by_pkgconfig" "${WORK}" OUTPUT out)
  expect_equal("${out}" "1 3 3 7\n" "the consumer by pkg-config")
endif()

# ---- the program -------------------------------------------------------------------------------
if(EXISTS "${tree}/bin/penstock")
  run(COMMAND env -i "${tree}/bin/penstock" --help OUTPUT out)
  if(NOT out MATCHES "train")
    message(SEND_ERROR "penstock --help does not speak of training:\n${out}")
  endif()
endif()
file(REMOVE_RECURSE "${WORK}")
