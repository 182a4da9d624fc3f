#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

#include "image/video/video_container.h"

extern "C" {
#include <libavutil/opt.h>
}

namespace vlmtrain::image {

/// The properties of a small video for tests.
struct Clip {
  std::string codec = "ffv1";
  AVPixelFormat format = AV_PIX_FMT_0RGB32;  ///< on x86: blue, green, red, nothing
  int width = 34;
  int height = 22;
  int frames = 12;
  AVRational rate{10, 1};
  int key_interval = 4;
  int b_frames = 0;
  int32_t matrix[4] = {1, 0, 0, 1};  ///< of the display: a, b, c, d
  std::string options{};             ///< of the muxer, key=value
};

inline void check_code(int code) {
  if (code >= 0) return;
  char text[AV_ERROR_MAX_STRING_SIZE]{};
  av_strerror(code, text, sizeof(text));
  throw std::runtime_error(text);
}

/// A writer of clips. The extension of the file selects the container.
class VideoWriter {
 public:
  VideoWriter(const std::filesystem::path& file, const Clip& clip) : clip_(clip) {
    capture_ffmpeg_messages();
    AVFormatContext* muxer = nullptr;
    check_code(avformat_alloc_output_context2(&muxer, nullptr, nullptr, file.c_str()));
    muxer_ = muxer;
    open_encoder();
    stream_ = avformat_new_stream(muxer_, nullptr);
    check_code(avcodec_parameters_from_context(stream_->codecpar, encoder_.get()));
    stream_->time_base = encoder_->time_base;
    stream_->avg_frame_rate = clip.rate;
    set_display_matrix();
    check_code(avio_open(&muxer_->pb, file.c_str(), AVIO_FLAG_WRITE));
    AVDictionary* options = nullptr;
    check_code(av_dict_parse_string(&options, clip.options.c_str(), "=", ":", 0));
    check_code(avformat_write_header(muxer_, &options));
    av_dict_free(&options);
  }
  ~VideoWriter() {
    av_write_trailer(muxer_);
    avio_closep(&muxer_->pb);
    avformat_free_context(muxer_);
  }

  /// Encodes the clip. `paint`: fills a frame.
  void write(const std::function<void(AVFrame& frame, int frame_number)>& paint) {
    FramePtr frame(av_frame_alloc());
    frame->format = clip_.format;
    frame->width = clip_.width;
    frame->height = clip_.height;
    check_code(av_frame_get_buffer(frame.get(), 0));
    for (int frame_number = 0; frame_number < clip_.frames; ++frame_number) {
      check_code(av_frame_make_writable(frame.get()));
      paint(*frame, frame_number);
      frame->pts = frame_number;
      encode(frame.get());
    }
    encode(nullptr);
  }

  /// Writes bytes as the packet of a frame.
  void write_packet(const std::string& bytes, int64_t time) {
    PacketPtr packet(av_packet_alloc());
    check_code(av_new_packet(packet.get(), static_cast<int>(bytes.size())));
    std::ranges::copy(bytes, packet->data);
    packet->pts = packet->dts = time;
    packet->flags |= AV_PKT_FLAG_KEY;
    check_code(av_interleaved_write_frame(muxer_, packet.get()));
  }

  /// Returns the largest packet of the first group of pictures, which is the key frame.
  const std::string& first_key_packet() const { return first_key_packet_; }

 private:
  void open_encoder() {
    const AVCodec* codec = avcodec_find_encoder_by_name(clip_.codec.c_str());
    if (codec == nullptr) throw std::runtime_error("no encoder " + clip_.codec);
    encoder_.reset(avcodec_alloc_context3(codec));
    encoder_->pix_fmt = clip_.format;
    encoder_->width = clip_.width;
    encoder_->height = clip_.height;
    encoder_->time_base = av_inv_q(clip_.rate);
    encoder_->framerate = clip_.rate;
    encoder_->gop_size = clip_.key_interval;
    encoder_->max_b_frames = clip_.b_frames;
    encoder_->thread_count = 1;
    if ((muxer_->oformat->flags & AVFMT_GLOBALHEADER) != 0) encoder_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    check_code(avcodec_open2(encoder_.get(), codec, nullptr));
  }

  void set_display_matrix() {
    auto* matrix =
        reinterpret_cast<int32_t*>(av_stream_new_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, 9 * sizeof(int32_t)));
    const int32_t values[9] = {clip_.matrix[0] * 65536,
                               clip_.matrix[1] * 65536,
                               0,
                               clip_.matrix[2] * 65536,
                               clip_.matrix[3] * 65536,
                               0,
                               0,
                               0,
                               1 << 30};
    std::ranges::copy(values, matrix);
  }

  void encode(const AVFrame* frame) {
    check_code(avcodec_send_frame(encoder_.get(), frame));
    PacketPtr packet(av_packet_alloc());
    while (avcodec_receive_packet(encoder_.get(), packet.get()) >= 0) {
      if (first_key_packet_.empty()) {
        first_key_packet_.assign(reinterpret_cast<const char*>(packet->data), packet->size);
      }
      av_packet_rescale_ts(packet.get(), encoder_->time_base, stream_->time_base);
      check_code(av_interleaved_write_frame(muxer_, packet.get()));
    }
  }

  Clip clip_;
  AVFormatContext* muxer_ = nullptr;
  CodecContextPtr encoder_;
  AVStream* stream_ = nullptr;
  std::string first_key_packet_;
};

/// Writes a file with 0.1 seconds of audio and no video.
inline void write_audio_only(const std::filesystem::path& file) {
  AVFormatContext* muxer = nullptr;
  check_code(avformat_alloc_output_context2(&muxer, nullptr, nullptr, file.c_str()));
  AVCodecParameters& audio = *avformat_new_stream(muxer, nullptr)->codecpar;
  audio.codec_type = AVMEDIA_TYPE_AUDIO;
  audio.codec_id = AV_CODEC_ID_PCM_S16LE;
  audio.format = AV_SAMPLE_FMT_S16;
  audio.sample_rate = 8000;
  av_channel_layout_default(&audio.ch_layout, 1);
  check_code(avio_open(&muxer->pb, file.c_str(), AVIO_FLAG_WRITE));
  check_code(avformat_write_header(muxer, nullptr));
  PacketPtr packet(av_packet_alloc());
  check_code(av_new_packet(packet.get(), 1600));
  std::fill_n(packet->data, packet->size, 0);
  packet->pts = packet->dts = 0;
  check_code(av_interleaved_write_frame(muxer, packet.get()));
  check_code(av_write_trailer(muxer));
  avio_closep(&muxer->pb);
  avformat_free_context(muxer);
}

/// Returns the color of a pixel in the frames of paint_rgb_frame().
inline std::array<uint8_t, 3> make_color(int frame_number, int y, int x) {
  return {static_cast<uint8_t>(20 * frame_number + 1), static_cast<uint8_t>(7 * y), static_cast<uint8_t>(5 * x)};
}

/// Paints a frame of 0RGB32 (four bytes per pixel) or RGB24.
inline void paint_rgb_frame(AVFrame& frame, int frame_number) {
  const bool is_packed = frame.format == AV_PIX_FMT_RGB24;
  for (int y = 0; y < frame.height; ++y) {
    for (int x = 0; x < frame.width; ++x) {
      uint8_t* pixel = frame.data[0] + y * frame.linesize[0] + x * (is_packed ? 3 : 4);
      const auto [red, green, blue] = make_color(frame_number, y, x);
      pixel[0] = is_packed ? red : blue;
      pixel[1] = green;
      pixel[2] = is_packed ? blue : red;
    }
  }
}

/// Paints a frame of YUV 4:2:0 with moving gradients, so that P and B frames have content.
inline void paint_yuv_frame(AVFrame& frame, int frame_number) {
  for (int plane = 0; plane < 3; ++plane) {
    const int shift = plane == 0 ? 0 : 1;
    for (int y = 0; y < frame.height >> shift; ++y) {
      for (int x = 0; x < frame.width >> shift; ++x) {
        frame.data[plane][y * frame.linesize[plane] + x] =
            static_cast<uint8_t>(40 + (3 * x + 2 * y * (plane + 1) + 5 * frame_number) % 160);
      }
    }
  }
}

}  // namespace vlmtrain::image
