# A program for machines that have LibTorch's wheel but none of Debian's packages (scripts/make_portable.sh): what Debian has
# static archives of is linked statically; {fmt} and spdlog, of which it has none, are compiled from its headers. LibTorch is
# looked for as torch/ in the program's folder and beside that. FFmpeg, which stands on a hundred libraries there, is built
# for it (scripts/make_ffmpeg.sh).
#
# It runs wherever LibTorch's wheel does, from glibc 2.28 and the libstdc++ of GCC 8 on: what this system's have in newer
# versions only is bound to the older one, or stands in cmake/portable/.
option(VLMTRAIN_PORTABLE "Link for machines without Debian's packages" OFF)
set(VLMTRAIN_FFMPEG ${CMAKE_SOURCE_DIR}/build/ffmpeg CACHE PATH "Where scripts/make_ffmpeg.sh has put FFmpeg, for portable programs")
if(VLMTRAIN_PORTABLE)
  enable_language(ASM)
  # Of programs LibTorch, of the stand-ins each other; then LD_LIBRARY_PATH.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/torch/lib:$ORIGIN/../torch/lib:$ORIGIN")
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

# vlmtrain_own_ffmpeg(TARGET): the imported target is the FFmpeg in VLMTRAIN_FFMPEG from now on.
function(vlmtrain_own_ffmpeg target)
  set(archives)
  foreach(name avformat avcodec swscale avutil)
    set(archive ${VLMTRAIN_FFMPEG}/lib/lib${name}.a)
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "there is no ${archive}: run scripts/make_ffmpeg.sh first")
    endif()
    list(APPEND archives ${archive})
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_FFMPEG}/include
                        INTERFACE_LINK_LIBRARIES "${archives}")
endfunction()

# vlmtrain_fmt_and_spdlog(): {fmt} and spdlog as a part of the program, declared to others as Debian's libraries declare them.
function(vlmtrain_fmt_and_spdlog)
  add_library(vlmtrain_fmt_and_spdlog STATIC ${CMAKE_SOURCE_DIR}/cmake/portable/fmt_and_spdlog.cpp)
  foreach(library fmt::fmt spdlog::spdlog)
    target_compile_definitions(vlmtrain_fmt_and_spdlog PUBLIC $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
endfunction()

# vlmtrain_for_older_hosts(TARGET): of a portable program or shared library, what is newer than its hosts. The linker sends
# references to NAME to __wrap_NAME.
function(vlmtrain_for_older_hosts target)
  if(NOT VLMTRAIN_PORTABLE)
    return()
  endif()
  set(folder ${CMAKE_SOURCE_DIR}/cmake/portable)
  set(sources ${folder}/older_host.cpp ${folder}/older_symbols.S)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    list(APPEND sources ${folder}/older_start.cpp)
  endif()
  target_sources(${target} PRIVATE ${sources})
  foreach(source IN LISTS sources)
    file(STRINGS ${source} lines REGEX "__wrap_[A-Za-z0-9_]+[\" (]|^OLDER")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*(__wrap_|OLDER\\()([A-Za-z0-9_]+).*" "\\2" name "${line}")
      target_link_options(${target} PRIVATE -Wl,--wrap=${name})
    endforeach()
  endforeach()
endfunction()
