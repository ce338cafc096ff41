# Language level, warnings, optimisation and sanitizers for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${PENSTOCK_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${PENSTOCK_CCACHE}")
endif()

set(penstock_warnings -Wall -Wextra -Wpedantic -Wshadow=local -Wconversion -Wno-sign-conversion
    -Wno-missing-field-initializers -Wnon-virtual-dtor
    -Woverloaded-virtual)
if(PENSTOCK_WERROR)
  list(APPEND penstock_warnings -Werror)
endif()

# Results must not depend on the compiler's freedom to fuse multiply and add: a CUDA build's CPU
# numbers equal a CPU build's bit for bit. Vector loops need the other two.
set(penstock_float_flags -ffp-contract=off -fno-math-errno -fno-trapping-math)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${penstock_float_flags}>")

if(PENSTOCK_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PENSTOCK_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all;-g1>")
  add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
endif()

# penstock_target(<name>): our warnings and include root on a target of ours.
function(penstock_target name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${penstock_warnings}>")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()

# single_source(<file>...): kernel files that are C++ without CUDA and CUDA with it. Adds them to
# the library of the project.
function(single_source)
  target_sources(penstock PRIVATE ${ARGN})
  if(PENSTOCK_HAS_CUDA)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY penstock PROPERTIES
      LANGUAGE CUDA COMPILE_OPTIONS "-O3;-Xcompiler=-O3")
  else()
    set_source_files_properties(${ARGN} TARGET_DIRECTORY penstock PROPERTIES
      LANGUAGE CXX COMPILE_OPTIONS "-O3")
  endif()
endfunction()

function(penstock_configure_library)
  penstock_target(penstock)
  set_target_properties(penstock PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  # Only penstock:: leaves the library; everything that it was built from stays inside.
  target_link_options(penstock PRIVATE
    "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
  # The run time of clang's sanitizers lies in the program, out of a library's sight.
  if(NOT (PENSTOCK_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang"))
    target_link_options(penstock PRIVATE LINKER:--no-undefined)
  endif()
  target_include_directories(penstock INTERFACE
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/penstock>")
  target_compile_features(penstock PUBLIC cxx_std_20)
  target_link_libraries(penstock PRIVATE ${CMAKE_DL_LIBS} TBB::tbb Threads::Threads
    $<BUILD_INTERFACE:penstock_private_dependencies>)
endfunction()
