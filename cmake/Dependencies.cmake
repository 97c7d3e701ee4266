# Third-party libraries: packages of the distribution if installed, otherwise downloaded. CYFA_*_LIBRARIES are what an installed cyfa links
# with (cmake/Install.cmake): paths, or targets of this build.
include(FetchContent)
set(FETCHCONTENT_QUIET OFF)

macro(cyfa_need package version url)
  find_package(${package} ${version} QUIET)
  if(NOT ${package}_FOUND)
    message(STATUS "${package} is not installed; downloading ${url}")
    FetchContent_Declare(${package} URL ${url})
    FetchContent_MakeAvailable(${package})
  endif()
endmacro()

set(JSON_Install ON)  # find_package(cyfa) needs it too
cyfa_need(nlohmann_json 3.10 https://github.com/nlohmann/json/archive/refs/tags/v3.11.2.tar.gz)
cyfa_need(CLI11 2.1 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.1.2.tar.gz)
if(CYFA_TESTS)
  cyfa_need(GTest 1.11 https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz)
endif()
if(CYFA_BENCH)
  set(BENCHMARK_ENABLE_TESTING OFF)
  cyfa_need(benchmark 1.6 https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz)
endif()

# Cairo draws the pictures. It is a system library with many dependencies of its own, so it is not downloaded.
add_library(cyfa_cairo INTERFACE IMPORTED GLOBAL)
find_path(CAIRO_INCLUDE cairo-svg.h PATH_SUFFIXES cairo)
find_library(CAIRO_LIBRARY cairo)
if(NOT CAIRO_INCLUDE OR NOT CAIRO_LIBRARY)
  message(FATAL_ERROR "Cairo, which draws the pictures, is not installed: cairo-svg.h and libcairo were not found. "
    "Install libcairo2-dev (Debian, Ubuntu) or cairo-devel (Fedora), or run `make setup`.")
endif()
target_include_directories(cyfa_cairo SYSTEM INTERFACE ${CAIRO_INCLUDE})
target_link_libraries(cyfa_cairo INTERFACE ${CAIRO_LIBRARY})
set(CYFA_CAIRO_LIBRARIES ${CAIRO_LIBRARY})

# SentencePiece is packaged without CMake files. It and libc10 both define FLAGS_minloglevel, with different sizes: in one process each
# would write into the other's. Static libraries are therefore linked without exporting their symbols; of shared ones the program uses
# copies that hide what torch's libraries define as well. tests/apps/process_test.py checks the result.
add_library(cyfa_sentencepiece INTERFACE IMPORTED GLOBAL)
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
if(SENTENCEPIECE_INCLUDE AND SENTENCEPIECE_LIBRARY AND SENTENCEPIECE_TRAIN_LIBRARY)
  set(CYFA_SENTENCEPIECE_LIBRARIES ${SENTENCEPIECE_LIBRARY} ${SENTENCEPIECE_TRAIN_LIBRARY})
  if(NOT SENTENCEPIECE_LIBRARY MATCHES "\\.a$")
    find_program(CYFA_PYTHON3 python3 REQUIRED)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      ${CMAKE_SOURCE_DIR}/cmake/hide_symbols.py ${CYFA_SENTENCEPIECE_LIBRARIES} ${CYFA_TORCH_LIBRARY_FILES})
    execute_process(
      COMMAND ${CYFA_PYTHON3} ${CMAKE_SOURCE_DIR}/cmake/hide_symbols.py ${CMAKE_BINARY_DIR} libsentencepiece libcyfa_sp
        ${CYFA_SENTENCEPIECE_LIBRARIES} --from ${CYFA_TORCH_LIBRARY_FILES}
      OUTPUT_VARIABLE CYFA_SENTENCEPIECE_LIBRARIES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" CYFA_SENTENCEPIECE_LIBRARIES "${CYFA_SENTENCEPIECE_LIBRARIES}")
    set(CYFA_SENTENCEPIECE_COPIES ${CYFA_SENTENCEPIECE_LIBRARIES})
  endif()
  target_include_directories(cyfa_sentencepiece SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE})
else()
  set(SPM_ENABLE_SHARED OFF)
  message(STATUS "SentencePiece is not installed; downloading it")
  FetchContent_Declare(sentencepiece URL https://github.com/google/sentencepiece/archive/refs/tags/v0.2.0.tar.gz)
  FetchContent_MakeAvailable(sentencepiece)
  target_include_directories(cyfa_sentencepiece SYSTEM INTERFACE ${sentencepiece_SOURCE_DIR}/src)
  set(CYFA_SENTENCEPIECE_LIBRARIES sentencepiece-static sentencepiece_train-static)
endif()
target_link_libraries(cyfa_sentencepiece INTERFACE ${CYFA_SENTENCEPIECE_LIBRARIES})
target_link_libraries(cyfa_sentencepiece INTERFACE -Wl,--exclude-libs,libsentencepiece.a:libsentencepiece_train.a)

# toml++ is a header-only library.
add_library(cyfa_toml INTERFACE IMPORTED GLOBAL)
find_path(TOML_INCLUDE toml++/toml.h)
if(NOT TOML_INCLUDE)
  message(STATUS "toml++ is not installed; downloading it")
  FetchContent_Declare(tomlplusplus URL https://github.com/marzer/tomlplusplus/archive/refs/tags/v3.4.0.tar.gz)
  FetchContent_MakeAvailable(tomlplusplus)
  set(TOML_INCLUDE ${tomlplusplus_SOURCE_DIR}/include)
endif()
target_include_directories(cyfa_toml SYSTEM INTERFACE ${TOML_INCLUDE})

# Debian packages zstd without CMake files too.
add_library(cyfa_zstd INTERFACE IMPORTED GLOBAL)
find_path(ZSTD_INCLUDE zstd.h)
find_library(ZSTD_LIBRARY zstd)
if(ZSTD_INCLUDE AND ZSTD_LIBRARY)
  target_include_directories(cyfa_zstd SYSTEM INTERFACE ${ZSTD_INCLUDE})
  set(CYFA_ZSTD_LIBRARIES ${ZSTD_LIBRARY})
else()
  set(ZSTD_BUILD_PROGRAMS OFF)
  set(ZSTD_BUILD_SHARED OFF)
  set(ZSTD_BUILD_TESTS OFF)
  message(STATUS "zstd is not installed; downloading it")
  FetchContent_Declare(zstd URL https://github.com/facebook/zstd/archive/refs/tags/v1.5.6.tar.gz SOURCE_SUBDIR build/cmake)
  FetchContent_MakeAvailable(zstd)
  target_include_directories(cyfa_zstd SYSTEM INTERFACE ${zstd_SOURCE_DIR}/lib)
  set(CYFA_ZSTD_LIBRARIES libzstd_static)
endif()
target_link_libraries(cyfa_zstd INTERFACE ${CYFA_ZSTD_LIBRARIES})
