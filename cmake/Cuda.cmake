# CUDA for Hopper. The flags are in cmake/cuda_flags.txt, which scripts/check_cuda.sh uses too: it compiles the kernels, with ptxas's
# report, on machines with nvcc but without a GPU. The CUDA runtime is linked statically: torch brings its own, and both share the device's
# primary context.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know nvcc 13's option for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/cuda_flags.txt cuda_flags)
list(REMOVE_ITEM cuda_flags -std=c++20)
list(JOIN cuda_flags " " cuda_flags)
string(APPEND CMAKE_CUDA_FLAGS " ${cuda_flags}")

# For targets that include CUDA headers or contain kernels.
find_package(CUDAToolkit REQUIRED)
add_library(cyfa_cuda INTERFACE IMPORTED GLOBAL)
target_include_directories(cyfa_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(cyfa_cuda INTERFACE CUDA::cudart_static)
