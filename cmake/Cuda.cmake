# CUDA for Hopper. Flags are those of cmake/cuda_flags.txt, which scripts/check_cuda.sh uses too: it compiles the kernels, with
# ptxas's report, on machines that have nvcc and no GPU. The runtime is linked statically: torch brings its own, and the two share
# the device's context.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
enable_language(CUDA)
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/cuda_flags.txt cuda_flags)
list(REMOVE_ITEM cuda_flags -std=c++20)
list(JOIN cuda_flags " " cuda_flags)
string(APPEND CMAKE_CUDA_FLAGS " ${cuda_flags}")

# What a target needs that includes CUDA's headers or holds kernels.
find_package(CUDAToolkit REQUIRED)
add_library(cyfa_cuda INTERFACE)
target_include_directories(cyfa_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(cyfa_cuda INTERFACE CUDA::cudart_static)
