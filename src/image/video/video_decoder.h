#pragma once

#include <cstdint>
#include <string>

#include "image/codec/codecs.h"
#include "image/video/ffmpeg.h"
#include "image/video/video_container.h"

namespace vlmtrain::image {

/// A decoder of a container's video stream. Errors are UserErrors (kBadData).
class VideoDecoder {
 public:
  explicit VideoDecoder(VideoContainer& container);

  /// Returns the next frame in the order of presentation, or null after the last one. Valid until
  /// the next call.
  const AVFrame* next();

  /// Discards all packets; to be called after the container seeks.
  void flush() { avcodec_flush_buffers(context_.get()); }

  /// Sends `packet` to the codec.
  void send_packet(const AVPacket* packet);

 private:
  VideoContainer& container_;
  CodecContextPtr context_;
  FramePtr frame_;
  int64_t decoded_pixels_ = 0;
};

/// A converter of decoded frames to interleaved RGB, by swscale.
class RgbConverter {
 public:
  /// `name`: names the video in errors.
  StoredPixels convert(const AVFrame& frame, const std::string& name);

 private:
  /// The properties of frames that a scaler depends on.
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
