#include "vlmtrain/report/tensorboard.h"

#include <unistd.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <span>

#include "report/format/html.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/progress.h"

namespace vlmtrain::report {

namespace {

std::string get_host_name_or_unknown() {
  const std::string name = get_host_name();
  return name.empty() ? "unknown" : name;
}

/// Returns a path that does not exist. TensorBoard reads files in the order of their names, which
/// begin with the time. A number distinguishes files of one process and second.
std::filesystem::path make_event_file_path(const std::filesystem::path& folder) {
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<int64_t>(get_unix_seconds()),
                                       get_host_name_or_unknown(), getpid());
  std::filesystem::path path = folder / name;
  for (int number = 1; std::filesystem::exists(path); ++number) path = folder / fmt::format("{}.{}", name, number);
  return path;
}

/// Returns the text as a block quote in Markdown. Two spaces at the end of a line preserve the line
/// break.
std::string format_block_quote(std::string_view text) {
  std::string quoted = "> ";
  for (const char character : text) quoted += character == '\n' ? std::string("  \n> ") : std::string(1, character);
  return quoted;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, int64_t resumed_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw run_error("{}: cannot be created: {}; remove the file in its place, or set {}=false", folder.string(),
                    error.message(), keys::output::kTensorboard);
  path_ = make_event_file_path(folder);
  file_.open(path_, std::ios::binary);
  append(make_version_event(get_unix_seconds()));
  append(make_session_start_event(get_unix_seconds(), resumed_step + 1));
}

void TensorBoardWriter::append(const std::string& event) {
  append_to_log_file(file_, make_framed_event(event), path_);
}

void TensorBoardWriter::add_scalars(int64_t step, const std::map<std::string, double>& values_by_tag) {
  append(make_scalars_event(get_unix_seconds(), step, values_by_tag));
}

void TensorBoardWriter::add_text(int64_t step, std::string_view tag, std::string_view markdown) {
  append(make_text_event(get_unix_seconds(), step, tag, markdown));
}

void TensorBoardWriter::add_image(int64_t step, std::string_view tag, std::string_view bytes, image::ImageSize size) {
  append(make_image_event(get_unix_seconds(), step, tag, bytes, size));
}

void TensorBoardWriter::add_step(const StepMetrics& metrics) {
  const auto to_gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  std::map<std::string, double> values{
      {"train/loss", metrics.loss},
      {"train/learning_rate", metrics.learning_rate},
      {"train/grad_norm", metrics.grad_norm},
      {"train/epoch", metrics.epoch},
      {"speed/tokens_per_second", metrics.tokens_per_second()},
      {"speed/step_seconds", metrics.step_seconds},
      {"speed/data_wait_seconds", metrics.data_wait_seconds},
      {"memory/host_gb", to_gigabytes(metrics.host_bytes)},
      {"memory/host_peak_gb", to_gigabytes(metrics.host_peak_bytes)},
      {"incidents/oom_splits", static_cast<double>(metrics.num_oom_splits)},
      {"incidents/forecast_splits", static_cast<double>(metrics.num_look_ahead_splits)},
      {"incidents/skipped_steps", static_cast<double>(metrics.num_skipped_steps)},
      {"incidents/micro_batches", static_cast<double>(metrics.num_micro_batches)}};
  if (metrics.vision_learning_rate) values["train/vision_learning_rate"] = *metrics.vision_learning_rate;
  if (metrics.projector_learning_rate) values["train/projector_learning_rate"] = *metrics.projector_learning_rate;
  if (metrics.mask_learning_rate) values["train/mask_learning_rate"] = *metrics.mask_learning_rate;
  if (metrics.loss_components) {
    values["train/loss_text"] = metrics.loss_components->text;
    values["train/loss_mask_bce"] = metrics.loss_components->bce;
    values["train/loss_mask_dice"] = metrics.loss_components->dice;
  }
  if (metrics.loss_scale) values["train/loss_scale"] = *metrics.loss_scale;
  if (metrics.reserved_peak_bytes > 0) {
    values["memory/allocated_peak_gb"] = to_gigabytes(metrics.allocated_peak_bytes);
    values["memory/reserved_peak_gb"] = to_gigabytes(metrics.reserved_peak_bytes);
    values["memory/fragmentation_gb"] = to_gigabytes(metrics.fragmentation_bytes());
  }
  if (metrics.predicted_allocated_peak_bytes) {
    values["memory/predicted_allocated_peak_gb"] = to_gigabytes(*metrics.predicted_allocated_peak_bytes);
  }
  if (metrics.predicted_reserved_peak_bytes) {
    values["memory/predicted_reserved_peak_gb"] = to_gigabytes(*metrics.predicted_reserved_peak_bytes);
  }
  if (metrics.device_free_bytes) values["memory/device_free_gb"] = to_gigabytes(*metrics.device_free_bytes);
  for (const auto& [name, task] : metrics.tasks) {
    values["tasks/" + name + "/loss"] = task.loss;
    values["tasks/" + name + "/weight"] = task.weight;
    if (task.accuracy) values["tasks/" + name + "/accuracy"] = *task.accuracy;
  }
  add_scalars(metrics.step, values);
  if (metrics.evaluation) add_evaluation(metrics.step, *metrics.evaluation);
}

void TensorBoardWriter::add_evaluation(int64_t step, const EvaluationMetrics& evaluation) {
  std::map<std::string, double> values{{"eval/seconds", evaluation.seconds}};
  const auto add = [&](const std::string& folder, const EvaluationScore& score) {
    values[folder + "loss"] = score.loss;
    if (score.exact_match) values[folder + "exact_match"] = *score.exact_match;
    for (const auto& [name, value] : score.metrics) {
      if (value) values[folder + name] = *value;
    }
    if (!score.masks) return;
    values[folder + "dice"] = score.masks->dice;
    values[folder + "iou"] = score.masks->iou;
    if (score.masks->hausdorff95) values[folder + "hausdorff95"] = *score.masks->hausdorff95;
  };
  add("eval/", evaluation.total);
  for (const auto& [name, score] : evaluation.tasks) add("eval/tasks/" + name + "/", score);
  for (const auto& [name, masks] : evaluation.mask_metrics_by_structure)
    values["eval/structures/" + name + "/dice"] = masks.dice;
  add_scalars(step, values);
  if (!evaluation.is_best) return;
  StepMetrics metrics;
  metrics.step = step;
  metrics.evaluation = evaluation;
  add_text(step, "eval/best", format_evaluation_line(metrics));
}

void TensorBoardWriter::add_prediction(const Prediction& prediction) {
  const std::string tag = "answers/" + prediction.id;
  add_text(prediction.step, tag,
           fmt::format("**Question**\n\n{}\n\n**Expected**\n\n{}\n\n**Given**\n\n{}\n",
                       format_block_quote(prediction.question), format_block_quote(prediction.expected_answer),
                       format_block_quote(prediction.answer)));
  const auto add_jpeg_image = [&](const std::string& uri, const char* label, size_t number,
                                  const std::string& caption = {}) {
    const std::string bytes = base64_decode(uri.substr(uri.find(',') + 1)).value_or("");
    const at::Tensor image_tensor = image::decode_image(std::as_bytes(std::span(bytes)), prediction.id);
    add_image(prediction.step, fmt::format("{}/{} {}{}", tag, label, number, caption), bytes,
              {image_tensor.size(1), image_tensor.size(2)});
  };
  for (size_t i = 0; i < prediction.thumbnail_uris.size(); ++i) {
    const std::string caption = i < prediction.volume_captions.size() ? prediction.volume_captions[i] : "";
    add_jpeg_image(prediction.thumbnail_uris[i], "image", i + 1, caption.empty() ? "" : fmt::format(" ({})", caption));
  }
  for (size_t i = 0; i < prediction.masks.size(); ++i) add_jpeg_image(prediction.masks[i].overlay_uri, "mask", i + 1);
}

namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string to_little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

/// A protocol buffer message under construction. Fields must be added in ascending order of their
/// numbers, as other writers do.
class ProtoMessage {
 public:
  ProtoMessage& add_varint(int field, uint64_t value) {
    write_field_key(field, WireType::kVarint);
    write_varint(value);
    return *this;
  }
  ProtoMessage& add_double(int field, double value) {
    write_field_key(field, WireType::kFixed64);
    bytes_ += to_little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  ProtoMessage& add_double(int field, float value) {
    write_field_key(field, WireType::kFixed32);
    bytes_ += to_little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  ProtoMessage& add_text(int field, std::string_view value) {
    write_field_key(field, WireType::kBytes);
    write_varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& add_message(int field, const ProtoMessage& value) { return add_text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void write_field_key(int field, WireType type) {
    write_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
  }
  void write_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// event.proto, message Event
constexpr int kWallTimeField = 1;
constexpr int kStepField = 2;
constexpr int kFileVersionField = 3;
constexpr int kSummaryField = 5;
constexpr int kSessionLogField = 7;
// summary.proto, messages Summary and Summary.Value
constexpr int kValueField = 1;
constexpr int kTagField = 1;
constexpr int kSimpleValueField = 2;
constexpr int kImageField = 4;
constexpr int kTensorField = 8;
constexpr int kMetadataField = 9;

/// Returns an event without content. A step of 0 is omitted, as protocol buffers omit zeros.
ProtoMessage make_empty_event(double time, int64_t step) {
  ProtoMessage event;
  event.add_double(kWallTimeField, time);
  if (step != 0) event.add_varint(kStepField, static_cast<uint64_t>(step));
  return event;
}

/// Returns the CRC masked as in TensorFlow's crc32c.h: rotated by 15 bits, plus kMaskDelta.
uint32_t compute_masked_crc(std::string_view bytes) {
  const uint32_t crc = compute_crc32c(bytes);
  constexpr uint32_t kMaskDelta = 0xa282ead8U;
  return (crc >> 15 | crc << 17) + kMaskDelta;
}

}  // namespace

std::string make_version_event(double time) {
  return make_empty_event(time, 0).add_text(kFileVersionField, "brain.Event:2").bytes();
}

std::string make_session_start_event(double time, int64_t step) {
  constexpr int kStatusField = 1;
  constexpr uint64_t kSessionStart = 1;
  return make_empty_event(time, step)
      .add_message(kSessionLogField, ProtoMessage().add_varint(kStatusField, kSessionStart))
      .bytes();
}

std::string make_scalars_event(double time, int64_t step, const std::map<std::string, double>& values_by_tag) {
  ProtoMessage summary;
  for (const auto& [tag, value] : values_by_tag) {
    summary.add_message(
        kValueField,
        ProtoMessage().add_text(kTagField, to_printable(tag)).add_double(kSimpleValueField, static_cast<float>(value)));
  }
  return make_empty_event(time, step).add_message(kSummaryField, summary).bytes();
}

std::string make_text_event(double time, int64_t step, std::string_view tag, std::string_view markdown) {
  // A TensorProto of one string, for the text plugin that the metadata names
  // (SummaryMetadata.plugin_data.plugin_name).
  constexpr uint64_t kStringDtype = 7;
  // tensor.proto: dtype = 1 (DT_STRING = 7), tensor_shape = 2, string_val = 8. tensor_shape.proto:
  // dim = 2, Dim.size = 1. summary.proto: SummaryMetadata.plugin_data = 1, PluginData.plugin_name =
  // 1.
  const ProtoMessage shape = ProtoMessage().add_message(2, ProtoMessage().add_varint(1, 1));
  const ProtoMessage tensor =
      ProtoMessage().add_varint(1, kStringDtype).add_message(2, shape).add_text(8, to_printable_lines(markdown));
  const ProtoMessage metadata = ProtoMessage().add_message(1, ProtoMessage().add_text(1, "text"));
  const ProtoMessage value = ProtoMessage()
                                 .add_text(kTagField, to_printable(tag))
                                 .add_message(kTensorField, tensor)
                                 .add_message(kMetadataField, metadata);
  return make_empty_event(time, step)
      .add_message(kSummaryField, ProtoMessage().add_message(kValueField, value))
      .bytes();
}

std::string make_image_event(double time, int64_t step, std::string_view tag, std::string_view bytes,
                             image::ImageSize size) {
  // summary.proto, message Summary.Image: height, width, colorspace, encoded_image_string.
  constexpr uint64_t kRgbColorspace = 3;
  const ProtoMessage image = ProtoMessage()
                                 .add_varint(1, static_cast<uint64_t>(size.height))
                                 .add_varint(2, static_cast<uint64_t>(size.width))
                                 .add_varint(3, kRgbColorspace)
                                 .add_text(4, bytes);
  const ProtoMessage value = ProtoMessage().add_text(kTagField, to_printable(tag)).add_message(kImageField, image);
  return make_empty_event(time, step)
      .add_message(kSummaryField, ProtoMessage().add_message(kValueField, value))
      .bytes();
}

std::string make_framed_event(std::string_view event) {
  const std::string length = to_little_endian(static_cast<uint64_t>(event.size()));
  return length + to_little_endian(compute_masked_crc(length)) + std::string(event) +
         to_little_endian(compute_masked_crc(event));
}

namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits reversed

/// CRCs of the 256 bytes, for computing a CRC byte by byte.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = remainder >> 1 ^ (remainder & 1 ? kReversedPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}();

}  // namespace

uint32_t compute_crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

}  // namespace vlmtrain::report
