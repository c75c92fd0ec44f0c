# LOSSGAUGE_FAST_COMPILE, for tests/run.sh. A source must compile by itself, too: without the option (an editor's build, run.sh --nightly) it does.
#
# lossgauge_precompile(TARGET kind): TARGET takes the headers of others (never ours) from one precompiled header of its kind.
#   server       standard library and Abseil
#   rpc          and gRPC with protobuf
#   test         of tests of libraries, at -O1: server, and GoogleTest
#   rpc_test     likewise: rpc, and GoogleTest
#   plain_test   of all other tests: standard library and GoogleTest
if(LOSSGAUGE_FAST_COMPILE)
  # gcc takes a precompiled header only under the flags that it was made with; some packages bring this one, others do not.
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-pthread>)
  # What gcc 12's optimizer makes of std::string is decided by what it inlines, which is other things behind a precompiled header: false alarms come and go.
  foreach(warning array-bounds restrict stringop-overflow stringop-overread maybe-uninitialized free-nonheap-object dangling-pointer nonnull)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=${warning}>)
  endforeach()
endif()

function(lossgauge_precompile target kind)
  if(NOT LOSSGAUGE_FAST_COMPILE OR NOT LOSSGAUGE_BUILD_SERVER)
    return()
  endif()
  set(owner lossgauge_precompiled_${kind})
  if(NOT TARGET ${owner})
    set(source ${PROJECT_BINARY_DIR}/generated/precompiled_${kind}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${owner} OBJECT ${source})
    target_link_libraries(${owner} PRIVATE lossgauge_flags)
    target_precompile_headers(${owner} PRIVATE
      <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <functional> <map> <memory> <mutex> <optional> <set> <string> <string_view> <unordered_map>
      <utility> <vector>)
    if(NOT kind STREQUAL plain_test)
      find_package(absl REQUIRED)
      target_precompile_headers(${owner} PRIVATE <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/time/time.h>)
      target_link_libraries(${owner} PRIVATE absl::statusor absl::str_format absl::strings absl::time)
    endif()
    if(kind MATCHES rpc)
      find_package(Protobuf REQUIRED)
      find_package(gRPC REQUIRED)
      target_precompile_headers(${owner} PRIVATE <google/protobuf/message.h> <grpcpp/grpcpp.h>)
      target_link_libraries(${owner} PRIVATE protobuf::libprotobuf gRPC::grpc++)
    endif()
    if(kind MATCHES test)
      target_precompile_headers(${owner} PRIVATE <filesystem> <fstream> <sstream> <thread> <gmock/gmock.h> <gtest/gtest.h>)
      target_link_libraries(${owner} PRIVATE GTest::gtest GTest::gmock)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  foreach(one ${owner} ${target})
    if(kind MATCHES test)
      target_compile_options(${one} PRIVATE -fPIE)  # as executables are, for libraries of tests
    endif()
    if(kind STREQUAL test OR kind STREQUAL rpc_test)
      target_compile_options(${one} PRIVATE -O1)  # gcc keeps to the level of the precompiled header, whatever the source is given
    endif()
  endforeach()
endfunction()

# lossgauge_unite(TARGET [source ...]): under sanitizers, eight sources of TARGET at a time are compiled as one; not those that are named, since they have names
# of their own in common with others. What gcc warns of then is not the source's: the cpu preset, which compiles each by itself, has warnings as errors.
function(lossgauge_unite target)
  if(LOSSGAUGE_FAST_COMPILE AND LOSSGAUGE_SANITIZE)
    target_compile_options(${target} PRIVATE -Wno-error)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
