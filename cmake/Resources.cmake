# vlmtrain_resources(PART FOLDER TARGET): compiles the files of FOLDER into the target, so that the binary needs no data folder.
# They are read with io/file.h, by their path below FOLDER, from the function resources() in the namespace of the part.
function(vlmtrain_resources part folder target)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*)
  set(generated ${CMAKE_BINARY_DIR}/generated/${part}_resources.cpp)
  list(TRANSFORM files PREPEND ${folder}/ OUTPUT_VARIABLE paths)
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D "FILES=${files}" -D OUTPUT=${generated} -D PART=${part}
            -P ${CMAKE_SOURCE_DIR}/cmake/EmbedResources.cmake
    DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/cmake/EmbedResources.cmake VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()
