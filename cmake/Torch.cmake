# The target cyfa_torch, made from the include/ and lib/ folders of a torch wheel. It works for CPU and CUDA wheels alike; torch's own
# TorchConfig.cmake also requires a full CUDA toolkit (cuBLAS etc.), which is not needed to compile these kernels.
if(NOT CYFA_TORCH_DIR)
  file(GLOB CYFA_TORCH_DIR ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(NOT CYFA_TORCH_DIR)
    find_program(CYFA_PYTHON python3)
    execute_process(COMMAND ${CYFA_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE CYFA_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(NOT EXISTS ${CYFA_TORCH_DIR}/include/torch/csrc/api/include/torch/torch.h)
  message(FATAL_ERROR "torch was not found. Run `make setup`, or pass -DCYFA_TORCH_DIR=<the folder of the Python package torch>.")
endif()
file(STRINGS ${CYFA_TORCH_DIR}/version.py version_line REGEX "^__version__")
string(REGEX REPLACE ".*['\"](.*)['\"].*" "\\1" CYFA_TORCH_VERSION "${version_line}")
message(STATUS "torch ${CYFA_TORCH_VERSION} in ${CYFA_TORCH_DIR}")

find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(cyfa_torch INTERFACE)
target_include_directories(cyfa_torch SYSTEM INTERFACE ${CYFA_TORCH_DIR}/include ${CYFA_TORCH_DIR}/include/torch/csrc/api/include)
# at::parallel_for is a header template with an OpenMP pragma: without -fopenmp it would silently run on one thread.
target_compile_options(cyfa_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
set(torch_libraries c10 torch_cpu torch)
if(CYFA_CUDA)
  list(APPEND torch_libraries c10_cuda torch_cuda)
  # The wheel's CUDA libraries come from other wheels, which may be absent when linking.
  target_link_options(cyfa_torch INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs)
endif()
target_link_options(cyfa_torch INTERFACE -Wl,--no-as-needed -L${CYFA_TORCH_DIR}/lib -Wl,-rpath,${CYFA_TORCH_DIR}/lib)
target_link_libraries(cyfa_torch INTERFACE ${torch_libraries})
# The process must have one OpenMP runtime: the wheel's own if it brings one.
file(GLOB torch_gomp ${CYFA_TORCH_DIR}/lib/libgomp*.so*)
if(torch_gomp)
  list(GET torch_gomp 0 torch_gomp)
  target_link_libraries(cyfa_torch INTERFACE ${torch_gomp})
else()
  target_link_libraries(cyfa_torch INTERFACE OpenMP::OpenMP_CXX)
endif()
target_compile_definitions(cyfa_torch INTERFACE CYFA_TORCH_VERSION="${CYFA_TORCH_VERSION}")
