#include "image/codec/tiff_file.h"

#include <array>
#include <cstdio>

namespace vlmtrain::image {

namespace {

struct TiffOptionsDeleter {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
};

// The input functions of libtiff, whose `stream` is a ByteStream.

tmsize_t read_tiff_bytes(thandle_t stream, void* out, tmsize_t count) {
  return static_cast<tmsize_t>(
      static_cast<ByteStream*>(stream)->read({static_cast<uint8_t*>(out), static_cast<size_t>(count)}));
}

tmsize_t write_tiff_bytes(thandle_t /*stream*/, void* /*bytes*/, tmsize_t /*count*/) {
  return -1;
}

toff_t seek_tiff(thandle_t stream, toff_t offset, int origin) {
  auto& byte_stream = *static_cast<ByteStream*>(stream);
  if (origin == SEEK_CUR) offset += byte_stream.position();
  if (origin == SEEK_END) offset += byte_stream.size();
  byte_stream.seek(offset);
  return offset;
}

int close_tiff(thandle_t /*stream*/) {
  return 0;
}

toff_t get_tiff_size(thandle_t stream) {
  return static_cast<ByteStream*>(stream)->size();
}

}  // namespace

TiffFile::TiffFile(ByteSource& source, const std::string& name) : stream_(source), name_(name) {
  const std::unique_ptr<TIFFOpenOptions, TiffOptionsDeleter> options(TIFFOpenOptionsAlloc());
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), store_message, this);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), store_message, this);
  // "O" reads the offsets of strips and tiles on demand, so that headers need only small reads.
  tiff_.reset(TIFFClientOpenExt(name.c_str(), "rO", &stream_, read_tiff_bytes, write_tiff_bytes, seek_tiff, close_tiff,
                                get_tiff_size, nullptr, nullptr, options.get()));
  if (tiff_ == nullptr) throw make_damaged_error();
  message_.clear();  // messages about unimportant tags
}

void TiffFile::check_read(bool is_complete) const {
  if (!is_complete || !message_.empty()) throw make_damaged_error();
}

UserError TiffFile::make_damaged_error() const {
  return data_error("{}: a damaged or truncated TIFF ({}); replace the file or drop the sample", name_,
                    message_.empty() ? "its tags contradict each other" : message_);
}

int TiffFile::store_message(TIFF* /*tiff*/, void* file, const char* /*module*/, const char* format, va_list arguments) {
  constexpr int kIsHandled = 1;
  std::string& message = static_cast<TiffFile*>(file)->message_;
  if (!message.empty()) return kIsHandled;
  std::array<char, 200> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  message = text[0] == '\0' ? "an error without a message" : text.data();
  return kIsHandled;
}

}  // namespace vlmtrain::image
