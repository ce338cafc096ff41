# A relocatable tree: bin/penstock, lib/libpenstock.so with its plugins and the libraries that a
# system may lack, include/penstock, a CMake package and a pkg-config file. Nothing in it names the
# place where it was built or installed; `cmake --install build --prefix X --strip` makes it small.
include(CMakePackageConfigHelpers)
option(PENSTOCK_BUNDLE "Install copies of the libraries that Penstock needs beside it" ON)

set(penstock_libraries penstock)
foreach(plugin penstock_onednn penstock_cuda penstock_nccl)
  if(TARGET ${plugin})
    list(APPEND penstock_libraries ${plugin})
  endif()
endforeach()
set_target_properties(${penstock_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN")
# The older form of the path also serves the dependencies of what it finds: a bundled libdnnl needs
# the bundled libgomp. NVIDIA's libraries bring paths of their own.
foreach(library penstock penstock_onednn)
  if(TARGET ${library})
    target_link_options(${library} PRIVATE LINKER:--disable-new-dtags)
  endif()
endforeach()

install(TARGETS penstock EXPORT penstock-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
list(REMOVE_ITEM penstock_libraries penstock)
if(penstock_libraries)
  install(TARGETS ${penstock_libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET penstock_cli)
  file(RELATIVE_PATH penstock_bin_to_lib
    "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(penstock_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${penstock_bin_to_lib}")
  install(TARGETS penstock_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# ---- headers and packages ----------------------------------------------------------------------
foreach(folder framework data models)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock
    FILES_MATCHING PATTERN "*.h" PATTERN "cuda_plugin" EXCLUDE PATTERN "onednn_plugin" EXCLUDE)
endforeach()
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock
  FILES_MATCHING PATTERN "*.yaml")

set(penstock_package ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
install(EXPORT penstock-targets NAMESPACE Penstock:: DESTINATION ${penstock_package})
configure_package_config_file(cmake/penstock-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/penstock-config.cmake INSTALL_DESTINATION ${penstock_package})
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/penstock-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/penstock-config.cmake
  ${PROJECT_BINARY_DIR}/cmake/penstock-config-version.cmake
  DESTINATION ${penstock_package})

file(RELATIVE_PATH penstock_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/penstock.pc.in ${PROJECT_BINARY_DIR}/cmake/penstock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/penstock.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- other people's libraries ------------------------------------------------------------------
# Not the C and C++ run-time libraries: an older copy would be found first by everything else in the
# process. Not NVIDIA's: they are looked for where the user has them.
set(penstock_not_bundled
  "^lib(c|m|dl|rt|pthread|resolv|stdc\\\\+\\\\+|gcc_s|[aelmtu]*san)\\\\.so" "^ld-linux"
  "^lib(cuda|cudart|cublas|cudnn|nccl|nvidia|nvrtc|nvJitLink)" "^libpenstock")
if(PENSTOCK_BUNDLE)
  set(penstock_bundle_for "$<TARGET_FILE:penstock>")
  if(TARGET penstock_onednn)
    list(APPEND penstock_bundle_for "$<TARGET_FILE:penstock_onednn>")
  endif()
  install(CODE "
    set(libraries \"${penstock_bundle_for}\")
    find_program(dpkg dpkg-query)
    set(excluded \"${penstock_not_bundled}\")
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \${libraries}
      RESOLVED_DEPENDENCIES_VAR needed UNRESOLVED_DEPENDENCIES_VAR missing
      PRE_EXCLUDE_REGEXES \${excluded})
    if(missing)
      message(WARNING \"Not found, and so not bundled: \${missing}\")
    endif()
    foreach(library IN LISTS needed)
      file(INSTALL \"\${library}\" FOLLOW_SYMLINK_CHAIN
        DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}\")
      # Whoever passes the tree on passes on its licences: as the distribution keeps them.
      if(dpkg)
        file(REAL_PATH \"\${library}\" real)
        get_filename_component(name \"\${real}\" NAME)
        execute_process(COMMAND \${dpkg} -S \"*/\${name}\" OUTPUT_VARIABLE owner ERROR_QUIET)
        string(REGEX REPLACE \":.*\" \"\" owner \"\${owner}\")
        if(owner AND EXISTS \"/usr/share/doc/\${owner}/copyright\")
          file(INSTALL \"/usr/share/doc/\${owner}/copyright\" FOLLOW_SYMLINK_CHAIN
            DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/licenses/\${owner}\")
        endif()
      endif()
    endforeach()")
endif()
