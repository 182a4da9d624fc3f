# A program for machines that have LibTorch's wheel but none of Debian's packages (scripts/make_portable.sh): what Debian has
# static archives of is linked statically; {fmt} and spdlog, of which it has none, are copied beside the program, which looks
# for them and for LibTorch in lib/ and torch/lib/ there. FFmpeg is left out: it stands on a hundred libraries.
option(VLMTRAIN_PORTABLE "Link for machines without Debian's packages" OFF)
set(VLMTRAIN_NOT_IN_IMAGE "/no_video\\.cpp$")
set(VLMTRAIN_ALONE_IN_IMAGE "^$")
if(VLMTRAIN_PORTABLE)
  set(VLMTRAIN_ALONE_IN_IMAGE ".")  # without FFmpeg's files others would be compiled together, which share names
  set(VLMTRAIN_NOT_IN_IMAGE "/(ffmpeg|frame_times|rgb_converter|video_container|video_decoder|encoded_video)\\.cpp$")
  # Of programs LibTorch and {fmt}, of the stand-ins each other; then LD_LIBRARY_PATH.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/torch/lib:$ORIGIN/lib:$ORIGIN")
  # Programs start where LibTorch is found, which is not where they are built.
  set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
endif()

# vlmtrain_link_statically(TARGET NAME…): the imported target is the archives lib<NAME>.a from now on.
function(vlmtrain_link_statically target)
  set(archives)
  foreach(name IN LISTS ARGN)
    find_library(VLMTRAIN_ARCHIVE_${name} lib${name}.a REQUIRED)
    list(APPEND archives ${VLMTRAIN_ARCHIVE_${name}})
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${archives}")
endfunction()
