# What `cmake --install` installs for other C++ projects: headers, the libraries of the layers as targets cyfa::NAME, and cyfaConfig.cmake
# for find_package(cyfa). The program's part is in apps/, that of the Python package in python/.
#
# Libraries are found in their own folder or in lib beside bin, and torch's where it was for the build; in a Python package, beside it.
if(SKBUILD)
  set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../../torch/lib")
else()
  set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../lib" ${CYFA_TORCH_DIR}/lib)
endif()

# Installs third-party libraries that are files of this build, and sets `out` to what to link with in their place.
function(cyfa_install_libraries out)
  set(all)
  foreach(library ${ARGN})
    if(TARGET ${library})
      install(FILES $<TARGET_FILE:${library}> DESTINATION lib)
      list(APPEND all "\${cyfa_prefix}/lib/$<TARGET_FILE_NAME:${library}>")
    elseif(library MATCHES "^${CMAKE_BINARY_DIR}/(.*)$")
      install(FILES ${library} DESTINATION lib)
      list(APPEND all "\${cyfa_prefix}/lib/${CMAKE_MATCH_1}")
    else()
      list(APPEND all ${library})
    endif()
  endforeach()
  set(${out} "${all}" PARENT_SCOPE)
endfunction()

# Called when all targets are there: the layers' libraries by the names of their folders.
function(cyfa_install_layers)
  foreach(layer ${ARGN})
    set_target_properties(cyfa_${layer} PROPERTIES EXPORT_NAME ${layer})
    install(TARGETS cyfa_${layer} EXPORT cyfa ARCHIVE DESTINATION lib LIBRARY DESTINATION lib)
  endforeach()
  set_target_properties(cyfa_flags PROPERTIES EXPORT_NAME flags)
  install(TARGETS cyfa_flags EXPORT cyfa)
  install(EXPORT cyfa NAMESPACE cyfa:: FILE cyfaTargets.cmake DESTINATION lib/cmake/cyfa)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/cyfa DESTINATION include FILES_MATCHING PATTERN "*.h")

  cyfa_install_libraries(cairo ${CYFA_CAIRO_LIBRARIES})
  cyfa_install_libraries(sentencepiece ${CYFA_SENTENCEPIECE_LIBRARIES})
  cyfa_install_libraries(zstd ${CYFA_ZSTD_LIBRARIES})
  set(folder ${CMAKE_BINARY_DIR}/install)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/cyfaConfig.cmake.in ${folder}/cyfaConfig.cmake.in @ONLY)
  file(GENERATE OUTPUT ${folder}/cyfaConfig.cmake INPUT ${folder}/cyfaConfig.cmake.in)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${folder}/cyfaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${folder}/cyfaConfig.cmake ${folder}/cyfaConfigVersion.cmake ${CMAKE_SOURCE_DIR}/cmake/Torch.cmake
    ${CMAKE_SOURCE_DIR}/cmake/find_torch.py DESTINATION lib/cmake/cyfa)
endfunction()
