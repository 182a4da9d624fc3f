# A program for machines with LibTorch's wheel and without Debian's packages (scripts/make_portable.sh). Libraries with static
# archives in Debian are linked statically; {fmt} and spdlog have none and are compiled from their headers. LibTorch is searched
# as torch/ in the program's folder and next to it. FFmpeg, which depends on a hundred libraries in Debian, and libcurl, which
# depends on 30, are built separately (scripts/make_ffmpeg.sh, scripts/make_curl.sh).
#
# It runs wherever LibTorch's wheel does, from glibc 2.28 and the libstdc++ of GCC 8 on. Newer symbols of this system are bound
# to older versions, or implemented in cmake/portable/.
option(VLMTRAIN_PORTABLE "Link for machines without Debian's packages" OFF)
set(VLMTRAIN_FFMPEG ${CMAKE_SOURCE_DIR}/build/ffmpeg CACHE PATH "Where scripts/make_ffmpeg.sh has put FFmpeg, for portable programs")
set(VLMTRAIN_CURL ${CMAKE_SOURCE_DIR}/build/curl CACHE PATH "Where scripts/make_curl.sh has put libcurl, for portable programs")
if(VLMTRAIN_PORTABLE)
  enable_language(ASM)
  # Programs find LibTorch, stub libraries find each other; then LD_LIBRARY_PATH applies.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/torch/lib:$ORIGIN/../torch/lib:$ORIGIN")
  # Programs start only where LibTorch is found, which is not the build folder.
  set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
endif()

# vlmtrain_link_statically(TARGET NAME…): makes the imported target refer to the archives lib<NAME>.a.
function(vlmtrain_link_statically target)
  set(archives)
  foreach(name IN LISTS ARGN)
    find_library(VLMTRAIN_ARCHIVE_${name} lib${name}.a REQUIRED)
    list(APPEND archives ${VLMTRAIN_ARCHIVE_${name}})
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${archives}")
endfunction()

# vlmtrain_own_ffmpeg(TARGET): makes the imported target refer to the FFmpeg in VLMTRAIN_FFMPEG.
function(vlmtrain_own_ffmpeg target)
  set(archives)
  foreach(name avformat avcodec swscale avutil)
    set(archive ${VLMTRAIN_FFMPEG}/lib/lib${name}.a)
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "${archive}: does not exist; run scripts/make_ffmpeg.sh")
    endif()
    list(APPEND archives ${archive})
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_FFMPEG}/include
                        INTERFACE_LINK_LIBRARIES "${archives}")
endfunction()

# vlmtrain_own_curl(TARGET): makes the imported target refer to the libcurl in VLMTRAIN_CURL and OpenSSL's archives.
function(vlmtrain_own_curl target)
  set(archive ${VLMTRAIN_CURL}/lib/libcurl.a)
  if(NOT EXISTS ${archive})
    message(FATAL_ERROR "${archive}: does not exist; run scripts/make_curl.sh")
  endif()
  vlmtrain_link_statically(${target} ssl crypto)
  set_property(TARGET ${target} PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${VLMTRAIN_CURL}/include)
  get_target_property(openssl ${target} INTERFACE_LINK_LIBRARIES)
  set_property(TARGET ${target} PROPERTY INTERFACE_LINK_LIBRARIES ${archive} ${openssl})
endfunction()

# vlmtrain_libtiff(TARGET): makes the imported target refer to libtiff's archive and those of the codecs that it decodes with.
function(vlmtrain_libtiff target)
  add_library(vlmtrain_libtiff_codecs OBJECT ${CMAKE_SOURCE_DIR}/cmake/portable/libtiff_codecs.cpp)
  # An object file, not an archive, so that its functions come before those of the archives.
  set(archives $<TARGET_OBJECTS:vlmtrain_libtiff_codecs>)
  foreach(name tiff webp zstd lzma deflate jpeg z)
    find_library(VLMTRAIN_ARCHIVE_${name} lib${name}.a REQUIRED)
    list(APPEND archives ${VLMTRAIN_ARCHIVE_${name}})
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${archives}")
endfunction()

# vlmtrain_fmt_and_spdlog(): compiles {fmt} and spdlog into the program, with the declarations of Debian's libraries.
function(vlmtrain_fmt_and_spdlog)
  add_library(vlmtrain_fmt_and_spdlog STATIC ${CMAKE_SOURCE_DIR}/cmake/portable/fmt_and_spdlog.cpp)
  foreach(library fmt::fmt spdlog::spdlog)
    target_compile_definitions(vlmtrain_fmt_and_spdlog PUBLIC $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
endfunction()

# vlmtrain_for_older_hosts(TARGET): replaces symbols of a portable program or shared library that older hosts lack. The linker
# redirects references to NAME to __wrap_NAME.
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
