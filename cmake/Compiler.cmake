# Warnings, sanitizers and ccache for all targets of the project.
add_library(cyfa_flags INTERFACE)
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Werror)
target_compile_options(cyfa_flags INTERFACE "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${warnings}>>")
# GCC 12 reports an overlapping copy in `"literal" + std::string` at -O3 where there is none (GCC bug 105651).
target_compile_options(cyfa_flags INTERFACE $<BUILD_INTERFACE:$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>>)
target_include_directories(cyfa_flags INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
target_compile_features(cyfa_flags INTERFACE cxx_std_20)
target_compile_definitions(cyfa_flags INTERFACE $<BUILD_INTERFACE:CYFA_VERSION="${PROJECT_VERSION}">)
if(CYFA_SANITIZE)
  target_compile_options(cyfa_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(cyfa_flags INTERFACE -fsanitize=address,undefined)
endif()

find_program(CYFA_CCACHE ccache)
if(CYFA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers contain macros and timestamps: without the first setting ccache does not cache files that use one. With the second
  # it sees paths relative to the source tree, so that clones in other folders share what was compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CYFA_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
