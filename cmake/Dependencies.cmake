# Libraries. Everything here comes from the distribution; nothing is downloaded.
find_package(Threads REQUIRED)
find_package(TBB 2021 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.9 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)

# oneDNN and the OpenMP that it uses; both only reach the plugin.
set(PENSTOCK_HAS_ONEDNN FALSE)
if(PENSTOCK_ONEDNN)
  find_package(DNNL 2.6 QUIET)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(DNNL_FOUND AND OpenMP_CXX_FOUND)
    set(PENSTOCK_HAS_ONEDNN TRUE)
    message(STATUS "oneDNN: ${DNNL_VERSION}")
  else()
    message(STATUS "oneDNN: not found; matrix products and convolutions on the CPU use plain kernels")
  endif()
endif()

# The static archive where the distribution has a position-independent one: the installed tree then
# needs no copy of it. Those of yaml-cpp, libjpeg and libpng are not.
find_library(PENSTOCK_Z_STATIC libz.a)

add_library(penstock_private_dependencies INTERFACE)
# Header-only spdlog and fmt: nothing to ship. Only core/log.cpp includes them.
target_compile_definitions(penstock_private_dependencies INTERFACE
  SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_link_libraries(penstock_private_dependencies INTERFACE
  yaml-cpp JPEG::JPEG PNG::PNG
  $<IF:$<BOOL:${PENSTOCK_Z_STATIC}>,${PENSTOCK_Z_STATIC},ZLIB::ZLIB>)
target_include_directories(penstock_private_dependencies SYSTEM INTERFACE
  ${YAML_CPP_INCLUDE_DIR} ${JPEG_INCLUDE_DIRS} ${PNG_INCLUDE_DIRS})

if(PENSTOCK_TESTS)
  find_package(GTest REQUIRED)
endif()
