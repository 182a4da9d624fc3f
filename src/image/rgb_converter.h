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
  struct ConversionKey {
    int width, height, format, matrix;
    bool full_range;
    bool operator==(const ConversionKey&) const = default;
  };
  void prepare(const ConversionKey& key, const std::string& name);

  ConversionKey key_{};
  ScalerPtr scaler_;
  FramePtr rgb_;
};

}  // namespace vlmtrain::image
