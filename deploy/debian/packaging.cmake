# Debian packages: cpack -G DEB in the build directory, after the build. lossgauged (daemon, lossgaugectl, unit, completion, manual), liblossgauge0,
# liblossgauge-dev (headers, CMake package), python3-lossgauge.
set(packaging ${CMAKE_CURRENT_LIST_DIR})
set(manual ${PROJECT_BINARY_DIR}/manual)
find_package(Python3 COMPONENTS Interpreter)
find_program(LOSSGAUGE_GZIP gzip)
mark_as_advanced(LOSSGAUGE_GZIP)

if(TARGET lossgauged AND Python3_FOUND AND LOSSGAUGE_GZIP AND NOT CMAKE_CROSSCOMPILING)
  # From --help, so made after the programs.
  add_custom_command(
    OUTPUT ${manual}/lossgauged.8.gz ${manual}/lossgaugectl.1.gz ${manual}/lossgaugectl.bash
    COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}
    COMMAND ${Python3_EXECUTABLE} ${packaging}/man_pages.py $<TARGET_FILE:lossgauged> $<TARGET_FILE:lossgaugectl> ${manual}
    COMMAND ${LOSSGAUGE_GZIP} -9nf ${manual}/lossgauged.8 ${manual}/lossgaugectl.1
    COMMAND $<TARGET_FILE:lossgaugectl> completion bash > ${manual}/lossgaugectl.bash
    DEPENDS lossgauged lossgaugectl ${packaging}/man_pages.py
    COMMENT "Writing manual pages and completion"
    VERBATIM)
  add_custom_target(manual ALL DEPENDS ${manual}/lossgauged.8.gz)
  install(FILES ${manual}/lossgauged.8.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT server)
  install(FILES ${manual}/lossgaugectl.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT server)
  install(FILES ${manual}/lossgaugectl.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lossgaugectl COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/lossgauged.service DESTINATION lib/systemd/system COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/lossgauge.sysusers DESTINATION lib/sysusers.d RENAME lossgauge.conf COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/lossgauge.tmpfiles DESTINATION lib/tmpfiles.d RENAME lossgauge.conf COMPONENT server)
  install(FILES ${PROJECT_SOURCE_DIR}/server/detect/policy.yaml DESTINATION ${CMAKE_INSTALL_DATADIR}/lossgauge COMPONENT server)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/dashboards/rules ${PROJECT_SOURCE_DIR}/dashboards/runbooks DESTINATION ${CMAKE_INSTALL_DATADIR}/lossgauge COMPONENT server)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/dashboards/grafana/ DESTINATION ${CMAKE_INSTALL_DATADIR}/lossgauge/grafana COMPONENT server
    FILES_MATCHING PATTERN "*.json" PATTERN "package*.json" EXCLUDE PATTERN node_modules EXCLUDE)
endif()

set(components library development python)
if(TARGET lossgauged)
  list(APPEND components server)
endif()
set(package_of_library liblossgauge${PROJECT_VERSION_MAJOR})
set(package_of_development liblossgauge-dev)
set(package_of_python python3-lossgauge)
set(package_of_server lossgauged)

# What Debian wants beside every package.
string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${PROJECT_BINARY_DIR}/debian/changelog
  "lossgauge (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the source.\n\n -- lossgauge <maintainers@lossgauge.example>  ${today}\n")
file(WRITE ${PROJECT_BINARY_DIR}/debian/copyright
  "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: lossgauge\n\nFiles: *\nCopyright: the lossgauge authors\nLicense: Apache-2.0\n"
  " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n\nFiles: server/web/page/uplot\nCopyright: the uPlot authors\nLicense: MIT\n"
  " The text is served by lossgauged at /page/uplot/license.txt.\n")
if(LOSSGAUGE_GZIP)
  execute_process(COMMAND ${LOSSGAUGE_GZIP} -9nkf ${PROJECT_BINARY_DIR}/debian/changelog)
  foreach(component ${components})
    install(FILES ${PROJECT_BINARY_DIR}/debian/changelog.gz ${PROJECT_BINARY_DIR}/debian/copyright
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package_of_${component}} COMPONENT ${component})
  endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lossgauge)
set(CPACK_PACKAGE_CONTACT "lossgauge <maintainers@lossgauge.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
foreach(component ${components})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package_of_${component}})
endforeach()
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${packaging}/triggers)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "liblossgauge${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3, liblossgauge${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS python3-torch)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA "${packaging}/postinst;${packaging}/prerm;${packaging}/postrm")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "cross-entropy loss that counts what it sees\n The loss kernels of LLM training jobs (CPU, CUDA) with the gauge that writes their signals into shared memory.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "cross-entropy loss that counts what it sees (headers)\n C and C++ headers and the CMake package of liblossgauge.")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "cross-entropy loss that counts what it sees (PyTorch)\n Losses under autograd, and the gauge, for PyTorch scripts.")
set(CPACK_COMPONENT_SERVER_DESCRIPTION "observer of LLM training jobs\n Drains the rings of training jobs, judges their runs, exports metrics and tells a scheduler whether to restart. With lossgaugectl, rules, dashboards and runbooks.")
include(CPack)
