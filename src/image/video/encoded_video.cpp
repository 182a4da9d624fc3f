extern "C" {
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "image/codec/codecs.h"
#include "image/codec/orientation.h"
#include "image/video/frame_source.h"
#include "image/video/video_container.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

namespace {

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

UserError make_damaged_video_error(const std::string& name, int code) {
  return data_error("{}: the video is damaged ({}); replace the file or drop the sample", name,
                    get_ffmpeg_error_message(code));
}

VideoDecoder::VideoDecoder(VideoContainer& container) : container_(container), frame_(av_frame_alloc()) {
  const AVCodecParameters& parameters = *container.stream().codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters.codec_id);
  if (codec == nullptr) {
    throw data_error("{}: FFmpeg on this machine has no decoder for {}; convert the video, for example to H.264",
                     container.name(), avcodec_get_name(parameters.codec_id));
  }
  codec_context_.reset(avcodec_alloc_context3(codec));
  int code = avcodec_parameters_to_context(codec_context_.get(), &parameters);
  codec_context_->pkt_timebase = container.stream().time_base;
  codec_context_->thread_count = 1;
  codec_context_->max_pixels = kMaxFramePixels;
  if (code >= 0) code = avcodec_open2(codec_context_.get(), codec, nullptr);
  if (code < 0) throw make_damaged_video_error(container.name(), code);
}

const AVFrame* VideoDecoder::decode_next_frame() {
  while (true) {
    const int code = avcodec_receive_frame(codec_context_.get(), frame_.get());
    if (code == AVERROR_EOF) return nullptr;
    if (code == AVERROR(EAGAIN)) {
      send_packet(container_.read_packet());
      continue;
    }
    if (code < 0) throw make_damaged_video_error(container_.name(), code);
    if ((frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0 || frame_->decode_error_flags != 0) {
      throw make_damaged_video_error(container_.name(), AVERROR_INVALIDDATA);
    }
    num_decoded_pixels_ += int64_t{frame_->width} * frame_->height;
    if (num_decoded_pixels_ > kMaxDecodedPixelsPerVideo) {
      throw data_error(
          "{}: reading its frames would decode more than {:.0f} billion pixels; split the video, shrink its frames, or "
          "encode it again with more key frames",
          container_.name(), static_cast<double>(kMaxDecodedPixelsPerVideo) / 1e9);
    }
    return frame_.get();
  }
}

void VideoDecoder::send_packet(const AVPacket* packet) {
  const int code = avcodec_send_packet(codec_context_.get(), packet);
  if (code < 0) throw make_damaged_video_error(container_.name(), code);
}

InterleavedPixels RgbConverter::convert(const AVFrame& frame, const std::string& name) {
  prepare_scaler({frame.width, frame.height, frame.format, frame.colorspace, frame.color_range == AVCOL_RANGE_JPEG},
                 name);
  sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rgb_frame_->data, rgb_frame_->linesize);
  InterleavedPixels pixels({frame.height, frame.width}, 3);
  for (int64_t y = 0; y < frame.height; ++y) {
    std::memcpy(&pixels.samples[y * pixels.row_bytes()], rgb_frame_->data[0] + y * rgb_frame_->linesize[0],
                pixels.row_bytes());
  }
  return pixels;
}

void RgbConverter::prepare_scaler(const ScalerSettings& settings, const std::string& name) {
  if (scaler_ && settings == scaler_settings_) return;
  scaler_settings_ = settings;
  scaler_.reset(sws_getContext(settings.width, settings.height, static_cast<AVPixelFormat>(settings.format),
                               settings.width, settings.height, AV_PIX_FMT_RGB24, SWS_BICUBIC, nullptr, nullptr,
                               nullptr));
  if (!scaler_) {
    throw data_error(
        "{}: cannot convert the video's pixels to RGB ({}); convert the video, for example to H.264 yuv420p", name,
        get_ffmpeg_error_message(AVERROR(EINVAL)));
  }
  // swscale converts RGB of more than 8 bits through YUV and would apply the range only once.
  const bool is_rgb =
      (av_pix_fmt_desc_get(static_cast<AVPixelFormat>(settings.format))->flags & AV_PIX_FMT_FLAG_RGB) != 0;
  int* input_coefficients = nullptr;
  int* output_coefficients = nullptr;
  int full_range = 0;
  int rgb_range = 0;
  int brightness = 0;
  int contrast = 0;
  int saturation = 0;
  if (!is_rgb && sws_getColorspaceDetails(scaler_.get(), &input_coefficients, &full_range, &output_coefficients,
                                          &rgb_range, &brightness, &contrast, &saturation) >= 0) {
    // Formats such as yuvj420p imply full range.
    sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(settings.matrix), full_range | int{settings.full_range},
                             output_coefficients, rgb_range, brightness, contrast, saturation);
  }
  // swscale writes whole vectors beyond the end of a row; the rows are padded for that.
  rgb_frame_.reset(av_frame_alloc());
  rgb_frame_->format = AV_PIX_FMT_RGB24;
  rgb_frame_->width = settings.width;
  rgb_frame_->height = settings.height;
  if (av_frame_get_buffer(rgb_frame_.get(), 0) < 0) throw std::bad_alloc();
}

UserError make_no_frames_error(const std::string& name) {
  return data_error("{}: a video without frames; replace the file or drop the sample", name);
}

/// Returns the average frame rate, else FFmpeg's guess from the time stamps, else 0.
double get_frame_rate(const AVStream& stream) {
  for (const AVRational rate : {stream.avg_frame_rate, stream.r_frame_rate}) {
    if (rate.num > 0 && rate.den > 0) return av_q2d(rate);
  }
  return 0;
}

/// A reader of frames by index, fast for ascending indices. Seeks to key frames. After a seek that
/// led to another frame than expected, it never seeks again: it opens the file again and decodes
/// from the start.
class FrameReader {
 public:
  explicit FrameReader(const io::MediaRef& video) : video_(video), container_(std::in_place, video) {}

  const VideoContainer& container() const { return *container_; }

  /// Returns the number of displayed frames, from the container's index, from its packets, or by
  /// decoding the file. REQUIRES: called once, before read_frame().
  int64_t count_frames() {
    if (has_one_frame_per_packet(container_->stream().codecpar->codec_id)) {
      if (const int64_t num_samples = container_->count_indexed_samples(); num_samples > 0) {
        check_num_frames(num_samples, container_->name());
        return num_samples;
      }
    }
    if (!load_frame_times().empty()) return std::ssize(load_frame_times());
    reopen();
    is_decoder_positioned_ = false;  // counting moves the container to its end
    int64_t num_frames = 0;
    for (; decoder_->decode_next_frame() != nullptr; ++num_frames) check_num_frames(num_frames + 1, container_->name());
    return num_frames;
  }

  /// Returns the frame at `index`. Valid until the next call.
  const AVFrame& read_frame(int64_t index) {
    is_decoder_positioned_ = is_decoder_positioned_ && index >= next_frame_index_;
    if (!load_frame_times().empty() && can_seek_) {
      const int64_t key_frame_index = find_key_frame_index(index);
      if (!is_decoder_positioned_) {
        start_decoding(key_frame_index);
      } else if (key_frame_index > next_frame_index_ && !seek_to_key_frame(key_frame_index)) {
        disable_seeking();
      }
    }
    if (!is_decoder_positioned_) reopen();
    const AVFrame* frame = nullptr;
    while (next_frame_index_ <= index) {
      frame = decode_expected_frame();
      if (frame == nullptr) {
        disable_seeking();
        continue;
      }
      ++next_frame_index_;
    }
    return *frame;
  }

 private:
  /// Returns the times of all frames; empty if packets do not identify frames. The first call reads
  /// all packets from the current position, after which the container is at its end.
  const std::vector<FrameTime>& load_frame_times() {
    if (!frame_times_) frame_times_ = read_frame_times(*container_);
    return *frame_times_;
  }

  /// Opens the file again, with a new decoder, at its first packet.
  void reopen() {
    decoder_.reset();
    container_.emplace(video_);
    decoder_.emplace(*container_);
    next_frame_index_ = 0;
    has_sought_ = false;
    is_decoder_positioned_ = true;
  }

  /// Restarts from the first packet and forbids seeks, since one led to another frame than
  /// expected.
  void disable_seeking() {
    can_seek_ = false;
    reopen();
  }

  /// Creates a decoder and seeks to the key frame at `key_frame_index`. If this fails,
  /// is_decoder_positioned_ remains false. The container may be at its end.
  void start_decoding(int64_t key_frame_index) {
    if (!load_frame_times()[key_frame_index].is_key_frame) return;
    decoder_.emplace(*container_);
    next_frame_index_ = 0;
    is_decoder_positioned_ = seek_to_key_frame(key_frame_index);
  }

  /// Returns the frame at next_frame_index_, or null if a seek led to another frame.
  const AVFrame* decode_expected_frame() {
    const AVFrame* frame = decoder_->decode_next_frame();
    if (load_frame_times().empty()) {
      if (frame != nullptr) return frame;
      throw make_decode_error();
    }
    // Frames that precede a key frame in presentation order may refer to frames before it, which
    // are missing after a seek.
    while (has_sought_ && frame != nullptr && frame->pts < get_presentation_time(next_frame_index_))
      frame = decoder_->decode_next_frame();
    if (frame != nullptr && frame->pts == get_presentation_time(next_frame_index_)) return frame;
    if (has_sought_) return nullptr;
    throw make_decode_error();
  }

  UserError make_decode_error() const {
    return data_error("{}: frame {} cannot be decoded ({}); encode the video again or drop the sample",
                      container_->name(), next_frame_index_, get_ffmpeg_error_message(AVERROR_INVALIDDATA));
  }

  /// Returns the index of the frame with this presentation time, or nothing.
  std::optional<int64_t> find_frame_index(int64_t time) {
    const auto frame_time = std::ranges::lower_bound(load_frame_times(), time, {}, &FrameTime::presentation_time);
    if (frame_time == load_frame_times().end() || frame_time->presentation_time != time) return std::nullopt;
    return frame_time - load_frame_times().begin();
  }

  /// Returns the presentation time of a frame. Returns AV_NOPTS_VALUE, which no frame has, after
  /// the last one.
  int64_t get_presentation_time(int64_t index) {
    return index < std::ssize(load_frame_times()) ? load_frame_times()[index].presentation_time : AV_NOPTS_VALUE;
  }

  /// Returns the index of the last key frame at or before `index`; 0 without one.
  int64_t find_key_frame_index(int64_t index) {
    while (index > 0 && !load_frame_times()[index].is_key_frame) --index;
    return index;
  }

  /// Seeks to the key frame at `key_frame_index`, or to an earlier key frame at or after
  /// next_frame_index_, and sets next_frame_index_. Returns false if the container landed anywhere
  /// else.
  bool seek_to_key_frame(int64_t key_frame_index) {
    has_sought_ = true;
    decoder_->flush();
    if (!container_->seek(load_frame_times()[key_frame_index].presentation_time,
                          load_frame_times()[key_frame_index].decoding_time))
      return false;
    const AVPacket* packet = container_->read_packet();
    if (packet == nullptr || (packet->flags & AV_PKT_FLAG_KEY) == 0) return false;
    const std::optional<int64_t> reached_frame_index = find_frame_index(packet->pts);
    if (!reached_frame_index || *reached_frame_index < next_frame_index_ || *reached_frame_index > key_frame_index)
      return false;
    decoder_->send_packet(packet);
    next_frame_index_ = *reached_frame_index;
    return true;
  }

  io::MediaRef video_;
  std::optional<VideoContainer> container_;
  std::optional<std::vector<FrameTime>> frame_times_;  // empty: packets do not identify frames
  std::optional<VideoDecoder> decoder_;
  int64_t next_frame_index_ = 0;        // of the frame that decode_expected_frame() returns
  bool is_decoder_positioned_ = false;  // whether the decoder's next frame is at next_frame_index_
  bool can_seek_ = true;                // false after a seek that led to another frame than expected
  bool has_sought_ = false;             // whether the container was sought since it was opened
};

/// Returns the properties of the video. Throws UserError (kBadData) if it has no frames.
VideoInfo make_video_info(FrameReader& reader) {
  const int64_t num_frames = reader.count_frames();
  const VideoContainer& container = reader.container();
  if (num_frames == 0) throw make_no_frames_error(container.name());
  return {.num_frames = num_frames,
          .fps = get_frame_rate(container.stream()),
          .size = compute_upright_size(container.get_stored_size(), container.orientation())};
}

/// A source whose frames are decoded by FFmpeg.
class EncodedFrameSource final : public VideoFile::FrameSource {
 public:
  EncodedFrameSource(const VideoInfo& info, std::unique_ptr<FrameReader> reader)
      : FrameSource(info), reader_(std::move(reader)), orientation_(reader_->container().orientation()) {}

  void read(int64_t index, uint8_t* planes) override {
    const AVFrame& frame = reader_->read_frame(index);
    const std::string& name = reader_->container().name();
    if (compute_upright_size({frame.height, frame.width}, orientation_) != info().size) {
      throw data_error(
          "{}: frame {} has {} x {} pixels, unlike the first frame; encode the video again or drop the sample", name,
          index, frame.width, frame.height);
    }
    write_upright_rgb_planes(rgb_converter_.convert(frame, name), orientation_, planes);
  }

 private:
  std::unique_ptr<FrameReader> reader_;
  Orientation orientation_;
  RgbConverter rgb_converter_;
};

}  // namespace

std::unique_ptr<VideoFile::FrameSource> open_encoded_video(const io::MediaRef& video) {
  auto reader = std::make_unique<FrameReader>(video);
  const VideoInfo info = make_video_info(*reader);
  return std::make_unique<EncodedFrameSource>(info, std::move(reader));
}

}  // namespace vlmtrain::image
