#include "image/codec/tiff_file.h"

#include <tiffio.h>

#include <fmt/format.h>

#include <algorithm>
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

namespace {

/// Throws UserError (kBadData) for compressions that some libtiff cannot decode: portable programs
/// contain neither LERC, because of its size, nor JBIG, because of its license.
void check_compression(const TiffFile& tiff) {
  const uint16_t compression = tiff.get_tag(TIFFTAG_COMPRESSION, COMPRESSION_NONE);
  constexpr std::array<uint16_t, 3> kExcluded{COMPRESSION_LERC, COMPRESSION_JBIG, COMPRESSION_OJPEG};
  if (TIFFIsCODECConfigured(compression) != 0 && std::ranges::find(kExcluded, compression) == kExcluded.end()) return;
  const TIFFCodec* const codec = TIFFFindCODEC(compression);
  throw make_unsupported_tiff_error(tiff.name(), codec == nullptr ? fmt::format("compression {}", compression)
                                                                  : fmt::format("{} compression", codec->name));
}

/// Throws UserError (kBadData) for samples that are not unsigned integers of a supported size.
void check_sample_type(const TiffFile& tiff, int64_t bit_depth, int64_t num_samples) {
  const uint16_t sample_format = tiff.get_tag(TIFFTAG_SAMPLEFORMAT, SAMPLEFORMAT_UINT);
  if (sample_format == SAMPLEFORMAT_IEEEFP) {
    throw make_unsupported_tiff_error(tiff.name(), fmt::format("{}-bit floating-point samples", bit_depth));
  }
  if (sample_format != SAMPLEFORMAT_UINT && sample_format != SAMPLEFORMAT_VOID) {
    throw make_unsupported_tiff_error(tiff.name(), fmt::format("{}-bit signed or complex samples", bit_depth));
  }
  const bool is_packed = bit_depth == 1 || bit_depth == 2 || bit_depth == 4;
  if ((is_packed && num_samples == 1) || bit_depth == 8 || bit_depth == 16) return;
  throw make_unsupported_tiff_error(tiff.name(),
                                    fmt::format("{} samples of {} bits per pixel", num_samples, bit_depth));
}

/// Returns the color model. Makes libtiff convert JPEG's YCbCr to RGB. Throws UserError (kBadData)
/// for unsupported models.
ColorModel find_color_model(const TiffFile& tiff) {
  // Pillow's default, too, for files without the tag.
  const uint16_t photometric = tiff.get_tag(TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISWHITE);
  switch (photometric) {
    case PHOTOMETRIC_MINISWHITE:
      return ColorModel::kInvertedGray;
    case PHOTOMETRIC_MINISBLACK:
      return ColorModel::kGray;
    case PHOTOMETRIC_PALETTE:
      return ColorModel::kPalette;
    case PHOTOMETRIC_RGB:
      return ColorModel::kRgb;
    case PHOTOMETRIC_SEPARATED:
      return ColorModel::kCmyk;
    case PHOTOMETRIC_YCBCR:
      if (tiff.get_tag(TIFFTAG_COMPRESSION, COMPRESSION_NONE) == COMPRESSION_JPEG) {
        TIFFSetField(tiff.handle(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
        return ColorModel::kRgb;
      }
      throw make_unsupported_tiff_error(tiff.name(), "YCbCr samples that are not JPEG");
    default:
      throw make_unsupported_tiff_error(tiff.name(), fmt::format("color model {}", photometric));
  }
}

/// Returns the kind of the first sample after the colors.
AlphaKind find_alpha_kind(const TiffFile& tiff) {
  constexpr uint16_t kCorelDrawAlpha = 999;  // Pillow's TiffImagePlugin
  uint16_t num_extra_samples = 0;
  const uint16_t* kinds = nullptr;
  if (TIFFGetField(tiff.handle(), TIFFTAG_EXTRASAMPLES, &num_extra_samples, &kinds) != 1 || num_extra_samples == 0) {
    return AlphaKind::kNone;
  }
  if (kinds[0] == EXTRASAMPLE_ASSOCALPHA) return AlphaKind::kPremultiplied;
  return kinds[0] == EXTRASAMPLE_UNASSALPHA || kinds[0] == kCorelDrawAlpha ? AlphaKind::kStraight : AlphaKind::kNone;
}

}  // namespace

UserError make_unsupported_tiff_error(const std::string& name, const std::string& property) {
  return data_error(
      "{}: a TIFF with {} is not supported; convert it, for example: magick image.tif -auto-level -depth 8 image.png",
      name, property);
}

TiffLayout read_tiff_layout(const TiffFile& tiff) {
  check_compression(tiff);
  TiffLayout layout{.color_model = find_color_model(tiff),
                    .alpha = find_alpha_kind(tiff),
                    .bit_depth = tiff.get_tag(TIFFTAG_BITSPERSAMPLE, 1),
                    .num_samples = tiff.get_tag(TIFFTAG_SAMPLESPERPIXEL, 1)};
  layout.has_separate_planes =
      layout.num_samples > 1 && tiff.get_tag(TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG) == PLANARCONFIG_SEPARATE;
  check_sample_type(tiff, layout.bit_depth, layout.num_samples);
  if (layout.color_model == ColorModel::kCmyk) layout.alpha = AlphaKind::kNone;  // ignored, as in Pillow
  const bool is_gray = layout.color_model == ColorModel::kGray || layout.color_model == ColorModel::kInvertedGray;
  // Gray with more bands is not an image but a stack of measurements.
  constexpr int64_t kMaxSamples = 16;  // RGB with more bands than satellites' images have
  if (layout.num_samples < layout.num_channels() || layout.num_samples > kMaxSamples ||
      (is_gray && layout.num_samples > 2)) {
    throw make_unsupported_tiff_error(tiff.name(),
                                      fmt::format("{} samples per pixel of this color model", layout.num_samples));
  }
  if (layout.color_model == ColorModel::kPalette && layout.bit_depth > 8) {
    throw make_unsupported_tiff_error(tiff.name(), "a palette of 65536 colors");
  }
  if (tiff.find_tag<uint32_t>(TIFFTAG_IMAGEDEPTH).value_or(1) > 1) {
    throw make_unsupported_tiff_error(tiff.name(), "a volume; save its slices as images");
  }
  return layout;
}

}  // namespace vlmtrain::image
