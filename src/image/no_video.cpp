#include "image/frame_source.h"
#include "vlmtrain/base/error.h"

// In the place of encoded_video.cpp where the program is built without FFmpeg (cmake/Portable.cmake).

namespace vlmtrain::image {

std::unique_ptr<const VideoFile::Source> open_encoded_video(const std::filesystem::path& file) {
  throw data_error(
      "{0}: this program was built without FFmpeg and reads no video files; give a folder of its frames "
      "(ffmpeg -i {0} -vf fps=2 FOLDER/%06d.png)",
      file.string());
}

}  // namespace vlmtrain::image
