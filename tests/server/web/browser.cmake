# The status page in a real browser, against a stand-in for the server (fake_api.mjs).
find_program(LOSSGAUGE_CHROMIUM NAMES chromium chromium-browser google-chrome)
set(browser_modules ${CMAKE_CURRENT_BINARY_DIR}/npm)
add_custom_command(
  OUTPUT ${browser_modules}/installed
  COMMAND ${CMAKE_COMMAND} -E make_directory ${browser_modules}
  COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/tests/package.json ${PROJECT_SOURCE_DIR}/tests/package-lock.json
          ${PROJECT_SOURCE_DIR}/tests/.npmrc ${browser_modules}
  COMMAND ${CMAKE_COMMAND} -E chdir ${browser_modules} ${LOSSGAUGE_NPM} ci --ignore-scripts --no-audit --no-fund --loglevel=error
  COMMAND ${CMAKE_COMMAND} -E touch ${browser_modules}/installed
  DEPENDS ${PROJECT_SOURCE_DIR}/tests/package.json ${PROJECT_SOURCE_DIR}/tests/package-lock.json ${PROJECT_SOURCE_DIR}/tests/.npmrc
  COMMENT "Fetching what the browser tests need (npm ci)"
  VERBATIM)
add_custom_target(page_test_modules ALL DEPENDS ${browser_modules}/installed)
add_dependencies(page_test_modules lossgauge_page)

foreach(name page_test page_views_test page_reading_test page_past_test)
  if(LOSSGAUGE_CHROMIUM)
    add_test(NAME ${name} COMMAND ${LOSSGAUGE_NODE} --test ${CMAKE_CURRENT_SOURCE_DIR}/${name}.mjs)
    set_tests_properties(${name} PROPERTIES
      LABELS "e2e" TIMEOUT 300 RUN_SERIAL ON
      ENVIRONMENT "LOSSGAUGE_PAGE_DIST=${PROJECT_BINARY_DIR}/server/web/page/dist;LOSSGAUGE_BROWSER_MODULES=${browser_modules};LOSSGAUGE_CHROMIUM=${LOSSGAUGE_CHROMIUM}")
  else()
    # Skipped where everyone sees it, not left out.
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: no chromium; deploy/setup.sh installs it")
    set_tests_properties(${name} PROPERTIES LABELS "e2e" SKIP_REGULAR_EXPRESSION "skipped: no chromium")
  endif()
endforeach()
