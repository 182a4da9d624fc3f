# vlmtrain_build_commit(PART): adds "PART/build_commit.h" to the part, with the commit of the build.
function(vlmtrain_build_commit part)
  set(header ${CMAKE_BINARY_DIR}/generated/include/${part}/build_commit.h)
  set(write_header ${CMAKE_COMMAND} -D SOURCE=${CMAKE_SOURCE_DIR} -D OUTPUT=${header}
                   -P ${CMAKE_SOURCE_DIR}/cmake/BuildCommit.cmake)
  execute_process(COMMAND ${write_header})
  add_custom_target(vlmtrain_build_commit COMMAND ${write_header} BYPRODUCTS ${header} COMMENT "" VERBATIM)
  add_dependencies(vlmtrain_${part} vlmtrain_build_commit)
  target_include_directories(vlmtrain_${part} PRIVATE ${CMAKE_BINARY_DIR}/generated/include)
endfunction()
