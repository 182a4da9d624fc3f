#pragma once

#include "image/codecs.h"
#include "image/ffmpeg.h"

namespace vlmtrain::image {

/// Frames as decoded to interleaved RGB, by swscale.
class RgbConverter {
 public:
  /// `name` is what errors call the video.
  StoredPixels convert(const AVFrame& frame, const std::string& name);

 private:
  /// What a scaler is made for.
  struct Kind {
    int width, height, format, matrix;
    bool full_range;
    bool operator==(const Kind&) const = default;
  };
  void prepare(const Kind& kind, const std::string& name);

  Kind kind_{};
  Scaler scaler_;
  Frame rgb_;
};

}  // namespace vlmtrain::image
