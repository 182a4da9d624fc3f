#pragma once

#include <cstdint>
#include <string>

#include "image/codec/codecs.h"
#include "image/video/ffmpeg.h"
#include "image/video/video_container.h"

namespace vlmtrain::image {

/// A decoder of a container's video stream, on the calling thread. Methods throw UserError
/// (kBadData). Decodes at most kMaxDecodedPixelsPerVideo.
class VideoDecoder {
 public:
  /// `container` must outlive the object.
  explicit VideoDecoder(VideoContainer& container);

  /// Returns the next frame in presentation order, or null after the last one. Reads packets from
  /// the container as needed. The frame is valid until the next call.
  const AVFrame* decode_next_frame();

  /// Discards all packets. Must be called when the container seeks.
  void flush() { avcodec_flush_buffers(codec_context_.get()); }

  /// Sends a packet to the codec; null marks the end of the stream.
  void send_packet(const AVPacket* packet);

 private:
  VideoContainer& container_;
  CodecContextPtr codec_context_;
  FramePtr frame_;
  int64_t num_decoded_pixels_ = 0;
};

/// A converter of decoded frames to interleaved RGB, by swscale. Keeps the scaler as long as the
/// properties of frames do not change.
class RgbConverter {
 public:
  /// Returns the frame before its rotation. `name` identifies the video in messages. Throws
  /// UserError (kBadData) if swscale does not support the pixel format.
  InterleavedPixels convert(const AVFrame& frame, const std::string& name);

 private:
  /// The properties of frames that a scaler depends on. `format`: an AVPixelFormat; `matrix`: an
  /// AVColorSpace; `full_range`: luma from 0 to 255, not from 16 to 235.
  struct ScalerSettings {
    int width, height, format, matrix;
    bool full_range;

    bool operator==(const ScalerSettings&) const = default;
  };

  /// Creates the scaler and rgb_frame_ if `settings` differ from scaler_settings_.
  void prepare_scaler(const ScalerSettings& settings, const std::string& name);

  ScalerSettings scaler_settings_{};
  ScalerPtr scaler_;
  FramePtr rgb_frame_;  // output of the scaler, with padded rows
};

}  // namespace vlmtrain::image
