#include "report/tensorboard_event.h"

#include <bit>

#include "report/crc32c.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::report {

namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string to_little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

/// A message as it is put together; fields in the order of their numbers, as all writers have them.
class Message {
 public:
  Message& add_varint(int field, uint64_t value) {
    write_key(field, WireType::kVarint);
    write_varint(value);
    return *this;
  }
  Message& add_number(int field, double value) {
    write_key(field, WireType::kFixed64);
    bytes_ += to_little_endian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& add_number(int field, float value) {
    write_key(field, WireType::kFixed32);
    bytes_ += to_little_endian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& add_text(int field, std::string_view value) {
    write_key(field, WireType::kBytes);
    write_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& add_message(int field, const Message& value) { return add_text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void write_key(int field, WireType type) {
    write_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
  }
  void write_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// event.proto, message Event
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
// summary.proto, messages Summary and Summary.Value
constexpr int kValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kImage = 4;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;

/// Zeros are left out, as protocol buffers do it.
Message make_event(double time, int64_t step) {
  Message event;
  event.add_number(kWallTime, time);
  if (step != 0) event.add_varint(kStep, static_cast<uint64_t>(step));
  return event;
}

uint32_t mask_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace

std::string make_version_event(double time) {
  return make_event(time, 0).add_text(kFileVersion, "brain.Event:2").bytes();
}

std::string make_session_start_event(double time, int64_t step) {
  constexpr int kStatus = 1;
  constexpr uint64_t kStart = 1;
  return make_event(time, step).add_message(kSessionLog, Message().add_varint(kStatus, kStart)).bytes();
}

std::string make_scalars_event(double time, int64_t step, const std::map<std::string, double>& values_by_tag) {
  Message summary;
  for (const auto& [tag, value] : values_by_tag) {
    summary.add_message(
        kValue, Message().add_text(kTag, to_printable(tag)).add_number(kSimpleValue, static_cast<float>(value)));
  }
  return make_event(time, step).add_message(kSummary, summary).bytes();
}

std::string make_text_event(double time, int64_t step, std::string_view tag, std::string_view markdown) {
  // A TensorProto of one string, which the metadata gives to the text plugin (SummaryMetadata.plugin_data.plugin_name).
  constexpr uint64_t kString = 7;
  const Message shape = Message().add_message(2, Message().add_varint(1, 1));
  const Message tensor =
      Message().add_varint(1, kString).add_message(2, shape).add_text(8, to_printable_lines(markdown));
  const Message metadata = Message().add_message(1, Message().add_text(1, "text"));
  const Message value =
      Message().add_text(kTag, to_printable(tag)).add_message(kTensor, tensor).add_message(kMetadata, metadata);
  return make_event(time, step).add_message(kSummary, Message().add_message(kValue, value)).bytes();
}

std::string make_image_event(double time, int64_t step, std::string_view tag, std::string_view bytes,
                             image::ImageSize size) {
  constexpr uint64_t kRgb = 3;
  const Message image = Message()
                            .add_varint(1, static_cast<uint64_t>(size.height))
                            .add_varint(2, static_cast<uint64_t>(size.width))
                            .add_varint(3, kRgb)
                            .add_text(4, bytes);
  const Message value = Message().add_text(kTag, to_printable(tag)).add_message(kImage, image);
  return make_event(time, step).add_message(kSummary, Message().add_message(kValue, value)).bytes();
}

std::string frame_record(std::string_view event) {
  const std::string length = to_little_endian(static_cast<uint64_t>(event.size()));
  return length + to_little_endian(mask_crc(length)) + std::string(event) + to_little_endian(mask_crc(event));
}

}  // namespace vlmtrain::report
