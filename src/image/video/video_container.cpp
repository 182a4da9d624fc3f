#include "image/video/video_container.h"

extern "C" {
#include <libavutil/display.h>
}

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "image/codec/byte_source.h"
#include "image/video/frame_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

namespace {

/// The accepted containers, by FFmpeg's names. Other formats of FFmpeg are unsafe or misleading: it
/// reads playlists, which open other files, and renders any text as a video of a terminal.
constexpr const char* kAllowedContainerFormats =
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,asf,ogg,gif,apng,mxf,nut,ivf,rm,dv,wtv,"
    "h264,hevc,mjpeg,yuv4mpegpipe";

/// Throws UserError (kBadData) if the file is a Git LFS pointer.
void check_not_lfs_pointer(const io::MediaRef& video) {
  constexpr size_t kPrefixBytes = 64;  // longer than the first line of an LFS pointer
  std::string prefix;
  if (video.bytes) {
    prefix = video.bytes->substr(0, kPrefixBytes);
  } else {
    prefix.resize(kPrefixBytes);
    std::ifstream file(video.path, std::ios::binary);
    file.read(prefix.data(), static_cast<std::streamsize>(prefix.size()));
    prefix.resize(static_cast<size_t>(file.gcount()));
  }
  io::throw_if_lfs_pointer(video.path, prefix);
}

/// Opens a container. `input` reads the bytes of the video; null for a file.
FormatContextPtr open_container(const io::MediaRef& video, MemoryInput* input) {
  const std::string& name = video.path;
  AVFormatContext* context = nullptr;
  AVDictionary* options = nullptr;
  // A video in memory must not open files.
  av_dict_set(&options, "protocol_whitelist", input == nullptr ? "file" : "none", 0);
  av_dict_set(&options, "format_whitelist", kAllowedContainerFormats, 0);
  if (input != nullptr) {
    context = avformat_alloc_context();
    if (context == nullptr) throw std::bad_alloc();
    context->pb = input->avio_context();
  }
  const std::string url = input == nullptr ? "file:" + name : std::string();
  const int code = avformat_open_input(&context, url.c_str(), nullptr, &options);
  av_dict_free(&options);
  if (code < 0) {
    check_not_lfs_pointer(video);
    throw data_error("{}: cannot read the file as a video ({}); replace the file or drop the sample", name,
                     get_ffmpeg_error_message(code));
  }
  return FormatContextPtr(context);
}

void check_num_frame_pixels(const AVCodecParameters& parameters, const std::string& name) {
  if (parameters.width > 0 && parameters.height > kMaxFramePixels / parameters.width) {
    throw data_error("{}: frames of {} x {} pixels exceed the limit of {}; shrink them", name, parameters.width,
                     parameters.height, kMaxFramePixels);
  }
}

/// Reads the first packets, and decodes frames if needed, for properties that the headers lack.
void probe_streams(AVFormatContext& context, const std::string& name) {
  for (unsigned i = 0; i < context.nb_streams; ++i) check_num_frame_pixels(*context.streams[i]->codecpar, name);
  std::vector<AVDictionary*> options(context.nb_streams);
  for (AVDictionary*& stream_options : options) av_dict_set_int(&stream_options, "max_pixels", kMaxFramePixels, 0);
  const int code = avformat_find_stream_info(&context, options.data());
  for (AVDictionary*& stream_options : options) av_dict_free(&stream_options);
  if (code < 0) {
    throw data_error("{}: cannot read the file as a video ({}); replace the file or drop the sample", name,
                     get_ffmpeg_error_message(code));
  }
}

/// Returns FFmpeg's choice among the video streams.
AVStream* find_video_stream(AVFormatContext& context, const std::string& name) {
  const int index = av_find_best_stream(&context, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  // FFmpeg reports the cover image of an audio file as a video stream.
  if (index < 0 || (context.streams[index]->disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
    throw data_error("{}: has no video stream; replace the file or drop the sample", name);
  }
  return context.streams[index];
}

void check_has_frame_size(const AVCodecParameters& parameters, const std::string& name) {
  if (parameters.width <= 0 || parameters.height <= 0) {
    throw data_error("{}: the video's frames have no size ({}); replace the file or drop the sample", name,
                     get_ffmpeg_error_message(AVERROR_INVALIDDATA));
  }
  check_num_frame_pixels(parameters, name);
}

/// Returns whether the frame of a packet is displayed. VP8 has frames that are only references,
/// whose show_frame bit is 0 (RFC 6386, 9.1). REQUIRES: the packet has data.
bool contains_shown_frame(const AVPacket& packet, AVCodecID codec) {
  constexpr uint8_t kShowFrameBit = 0x10;
  return codec != AV_CODEC_ID_VP8 || (packet.data[0] & kShowFrameBit) != 0;
}

}  // namespace

VideoContainer::VideoContainer(const io::MediaRef& video)
    : name_(video.path), input_(video.bytes ? std::make_unique<MemoryInput>(video.bytes) : nullptr) {
  if (input_ != nullptr) io::get_media_bytes(video);  // checks that the bytes are available
  capture_ffmpeg_messages();
  if (input_ == nullptr) check_is_regular_file(name_, "the video");
  format_context_ = open_container(video, input_.get());
  probe_streams(*format_context_, name_);
  stream_ = find_video_stream(*format_context_, name_);
  check_has_frame_size(*stream_->codecpar, name_);
  for (unsigned i = 0; i < format_context_->nb_streams; ++i) {
    if (format_context_->streams[i] != stream_) format_context_->streams[i]->discard = AVDISCARD_ALL;
  }
  packet_.reset(av_packet_alloc());
}

Orientation VideoContainer::orientation() const {
  const auto* display_matrix =
      reinterpret_cast<const int32_t*>(av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, /*size=*/nullptr));
  if (display_matrix == nullptr) return Orientation::kUpright;
  const auto compute_sign = [](int32_t value) { return (value > 0) - (value < 0); };
  // The matrix is {a, b, u, c, d, v, x, y, w} in fixed point: stored pixel (x, y) is displayed at
  // (a x + c y, b x + d y). Signs of {a, b, c, d} suffice for multiples of 90 degrees and flips.
  struct MatrixOrientation {
    std::array<int, 4> signs;
    Orientation orientation;
  };
  constexpr std::array<MatrixOrientation, 7> kMatrixOrientations{
      {{{-1, 0, 0, 1}, Orientation::kFlipHorizontal},
       {{-1, 0, 0, -1}, Orientation::kRotate180},
       {{1, 0, 0, -1}, Orientation::kFlipVertical},
       {{0, 1, 1, 0}, Orientation::kTranspose},
       {{0, 1, -1, 0}, Orientation::kRotate90Clockwise},
       {{0, -1, -1, 0}, Orientation::kTransverse},
       {{0, -1, 1, 0}, Orientation::kRotate90Counterclockwise}}};
  const std::array<int, 4> signs{compute_sign(display_matrix[0]), compute_sign(display_matrix[1]),
                                 compute_sign(display_matrix[3]), compute_sign(display_matrix[4])};
  const auto* match = std::ranges::find(kMatrixOrientations, signs, &MatrixOrientation::signs);
  return match == kMatrixOrientations.end() ? Orientation::kUpright : match->orientation;
}

bool VideoContainer::is_mov() const {
  return std::string_view(format_context_->iformat->name).starts_with("mov,");
}

int64_t VideoContainer::count_indexed_samples() const {
  const int num_samples = avformat_index_get_entries_count(stream_);
  if (!is_mov() || num_samples == 0 || num_samples != stream_->nb_frames) return 0;
  const int64_t file_bytes = avio_size(format_context_->pb);
  int64_t num_shown_frames = 0;
  for (int i = 0; i < num_samples; ++i) {
    const AVIndexEntry& entry = *avformat_index_get_entry(stream_, i);
    if (entry.pos + entry.size > file_bytes) {
      throw data_error(
          "{}: the file is truncated: it has {} bytes, and sample {} of {} ends at {}; replace it or drop the sample",
          name_, file_bytes, i + 1, num_samples, entry.pos + entry.size);
    }
    num_shown_frames += (entry.flags & AVINDEX_DISCARD_FRAME) == 0 && entry.size > 0 ? 1 : 0;
  }
  return num_shown_frames;
}

const AVPacket* VideoContainer::read_packet() {
  while (true) {
    av_packet_unref(packet_.get());
    const int code = av_read_frame(format_context_.get(), packet_.get());
    if (code == AVERROR_EOF && format_context_->pb->error >= 0) return nullptr;
    if (code < 0 || (packet_->flags & AV_PKT_FLAG_CORRUPT) != 0) {
      throw data_error("{}: the video is damaged or truncated ({}); replace the file or drop the sample", name_,
                       get_ffmpeg_error_message(code < 0 ? code : AVERROR_INVALIDDATA));
    }
    // Decoders take a packet without data as the end of the stream.
    if (packet_->stream_index == stream_->index && packet_->size > 0) return packet_.get();
  }
}

bool VideoContainer::seek(int64_t presentation_time, int64_t decoding_time) {
  const bool uses_presentation_time =
      (format_context_->iformat->flags & AVFMT_SEEK_TO_PTS) != 0 || decoding_time == AV_NOPTS_VALUE;
  return av_seek_frame(format_context_.get(), stream_->index,
                       uses_presentation_time ? presentation_time : decoding_time, AVSEEK_FLAG_BACKWARD) >= 0;
}

bool has_one_frame_per_packet(AVCodecID codec) {
  return codec != AV_CODEC_ID_VP8 && codec != AV_CODEC_ID_MPEG4;
}

std::vector<FrameTime> read_frame_times(VideoContainer& container) {
  const AVCodecID codec = container.stream().codecpar->codec_id;
  if (!has_one_frame_per_packet(codec) && codec != AV_CODEC_ID_VP8) return {};
  std::vector<FrameTime> frames;
  while (const AVPacket* packet = container.read_packet()) {
    if ((packet->flags & AV_PKT_FLAG_DISCARD) != 0 || !contains_shown_frame(*packet, codec)) continue;
    if (packet->pts == AV_NOPTS_VALUE) return {};
    frames.push_back({packet->pts, packet->dts, (packet->flags & AV_PKT_FLAG_KEY) != 0});
    check_num_frames(std::ssize(frames), container.name());
  }
  std::ranges::sort(frames, {}, &FrameTime::presentation_time);
  if (std::ranges::adjacent_find(frames, {}, &FrameTime::presentation_time) != frames.end()) return {};
  return frames;
}

namespace {

/// The first error message of this thread since capture_ffmpeg_messages().
thread_local std::string first_error;

/// FFmpeg's log callback. FFmpeg's later messages usually follow from the first one.
void store_first_error(void* /*object*/, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR || !first_error.empty()) return;
  std::array<char, 256> message{};
  std::vsnprintf(message.data(), message.size(), format, arguments);
  first_error = message.data();
  first_error.erase(first_error.find_last_not_of(" \r\n") + 1);
}

constexpr int kFileBufferBytes = 1 << 15;  // the size of FFmpeg's own file buffers

}  // namespace

void capture_ffmpeg_messages() {
  [[maybe_unused]] static const bool is_set = (av_log_set_callback(store_first_error), true);
  first_error.clear();
}

std::string get_ffmpeg_error_message(int code) {
  if (!first_error.empty()) return first_error;
  std::array<char, AV_ERROR_MAX_STRING_SIZE> message{};
  av_strerror(code, message.data(), message.size());
  return message.data();
}

MemoryInput::MemoryInput(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {
  auto* const buffer = static_cast<unsigned char*>(av_malloc(kFileBufferBytes));
  if (buffer == nullptr) throw std::bad_alloc();
  avio_context_.reset(
      avio_alloc_context(buffer, kFileBufferBytes, /*write_flag=*/0, this, read, /*write_packet=*/nullptr, seek));
  if (avio_context_ != nullptr) return;
  av_free(buffer);
  throw std::bad_alloc();
}

void MemoryInput::AvioContextDeleter::operator()(AVIOContext* avio_context) const {
  av_freep(&avio_context->buffer);  // FFmpeg may have replaced the buffer
  avio_context_free(&avio_context);
}

int MemoryInput::read(void* opaque, uint8_t* out, int max_bytes) {
  auto& input = *static_cast<MemoryInput*>(opaque);
  const int64_t count = std::min<int64_t>(max_bytes, std::ssize(*input.bytes_) - input.position_);
  if (count <= 0) return AVERROR_EOF;
  std::memcpy(out, input.bytes_->data() + input.position_, static_cast<size_t>(count));
  input.position_ += count;
  return static_cast<int>(count);
}

int64_t MemoryInput::seek(void* opaque, int64_t offset, int whence) {
  auto& input = *static_cast<MemoryInput*>(opaque);
  const int64_t size = std::ssize(*input.bytes_);
  int64_t origin = 0;
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return size;
    case SEEK_SET:
      break;
    case SEEK_CUR:
      origin = input.position_;
      break;
    case SEEK_END:
      origin = size;
      break;
    default:
      return AVERROR(EINVAL);
  }
  if (offset < -origin || offset > size - origin) return AVERROR(EINVAL);
  return input.position_ = origin + offset;
}

}  // namespace vlmtrain::image
