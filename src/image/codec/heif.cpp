#include <libheif/heif.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "image/codec/byte_source.h"
#include "image/codec/codecs.h"
#include "image/codec/header.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"

namespace vlmtrain::image {

namespace {

/// The functions of libheif, without the prefix heif_, or the reason why it cannot be loaded. The
/// library is opened when the first HEIF file is read: with its codecs it is larger than this
/// program, and its AVIF and HEIC decoders differ between systems.
struct LibHeif {
  decltype(&heif_context_alloc) context_alloc = nullptr;
  decltype(&heif_context_free) context_free = nullptr;
  decltype(&heif_context_set_max_decoding_threads) context_set_max_decoding_threads = nullptr;
  decltype(&heif_context_read_from_reader) context_read_from_reader = nullptr;
  decltype(&heif_context_read_from_memory_without_copy) context_read_from_memory_without_copy = nullptr;
  decltype(&heif_context_get_primary_image_handle) context_get_primary_image_handle = nullptr;
  decltype(&heif_image_handle_release) image_handle_release = nullptr;
  decltype(&heif_image_handle_get_width) image_handle_get_width = nullptr;
  decltype(&heif_image_handle_get_height) image_handle_get_height = nullptr;
  decltype(&heif_image_handle_has_alpha_channel) image_handle_has_alpha_channel = nullptr;
  decltype(&heif_image_handle_is_premultiplied_alpha) image_handle_is_premultiplied_alpha = nullptr;
  decltype(&heif_decoding_options_alloc) decoding_options_alloc = nullptr;
  decltype(&heif_decoding_options_free) decoding_options_free = nullptr;
  decltype(&heif_decode_image) decode_image = nullptr;
  decltype(&heif_image_release) image_release = nullptr;
  decltype(&heif_image_get_width) image_get_width = nullptr;
  decltype(&heif_image_get_height) image_get_height = nullptr;
  decltype(&heif_image_get_plane_readonly) image_get_plane_readonly = nullptr;
  std::string problem;  ///< an error message; empty if libheif was loaded
};

LibHeif load_libheif() {
  // In the order of the members of LibHeif.
  const Plugin plugin =
      load_plugin("libheif.so.1", "heif_get_version_number_major", LIBHEIF_NUMERIC_VERSION >> 24,
                  {"heif_context_alloc", "heif_context_free", "heif_context_set_max_decoding_threads",
                   "heif_context_read_from_reader", "heif_context_read_from_memory_without_copy",
                   "heif_context_get_primary_image_handle", "heif_image_handle_release", "heif_image_handle_get_width",
                   "heif_image_handle_get_height", "heif_image_handle_has_alpha_channel",
                   "heif_image_handle_is_premultiplied_alpha", "heif_decoding_options_alloc",
                   "heif_decoding_options_free", "heif_decode_image", "heif_image_release", "heif_image_get_width",
                   "heif_image_get_height", "heif_image_get_plane_readonly"});
  LibHeif library;
  library.problem = plugin.problem;
  if (!plugin.problem.empty()) return library;
  auto function = plugin.functions.begin();
  const auto bind = [&](auto&... members) {
    ((members = reinterpret_cast<std::remove_reference_t<decltype(members)>>(*function++)), ...);
  };
  bind(library.context_alloc, library.context_free, library.context_set_max_decoding_threads,
       library.context_read_from_reader, library.context_read_from_memory_without_copy,
       library.context_get_primary_image_handle, library.image_handle_release, library.image_handle_get_width,
       library.image_handle_get_height, library.image_handle_has_alpha_channel,
       library.image_handle_is_premultiplied_alpha, library.decoding_options_alloc, library.decoding_options_free,
       library.decode_image, library.image_release, library.image_get_width, library.image_get_height,
       library.image_get_plane_readonly);
  return library;
}

const LibHeif& get_libheif() {
  static const LibHeif kLibrary = load_libheif();
  return kLibrary;
}

/// Deletes an object with the function of libheif that `Free` is a member for.
template <auto Free>
struct HeifDeleter {
  template <class Object>
  void operator()(Object* object) const {
    (get_libheif().*Free)(object);
  }
};

using HeifContext = std::unique_ptr<heif_context, HeifDeleter<&LibHeif::context_free>>;
using HeifHandle = std::unique_ptr<heif_image_handle, HeifDeleter<&LibHeif::image_handle_release>>;
using HeifImage = std::unique_ptr<heif_image, HeifDeleter<&LibHeif::image_release>>;
using HeifOptions = std::unique_ptr<heif_decoding_options, HeifDeleter<&LibHeif::decoding_options_free>>;

/// The command that converts a file of a format, for messages.
std::string make_conversion_command(const std::string& format) {
  return format == "AVIF" ? "ffmpeg -i image.avif image.png" : "heif-convert image.heic image.png";
}

/// Throws UserError (kBadData) for an error of libheif.
void check_heif(const heif_error& error, const std::string& format, const std::string& name) {
  if (error.code == heif_error_Ok) return;
  const bool has_no_decoder = error.subcode == heif_suberror_Unsupported_codec;
  if (has_no_decoder || error.code == heif_error_Unsupported_feature || error.code == heif_error_Decoder_plugin_error) {
    throw data_error("{}: libheif cannot decode this {} ({}); {}convert it, for example: {}", name, format,
                     error.message, has_no_decoder ? "install its decoders, libde265 and dav1d, or " : "",
                     make_conversion_command(format));
  }
  throw data_error("{}: a damaged or truncated {} ({}); replace the file or drop the sample", name, format,
                   error.message);
}

HeifContext make_context(const std::string& format, const std::string& name) {
  if (const std::string& problem = get_libheif().problem; !problem.empty()) {
    throw data_error(
        "{}: {} needs libheif, which cannot be loaded ({}); install it (apt-get install libheif1), or convert the "
        "image, for example: {}",
        name, format, problem, make_conversion_command(format));
  }
  HeifContext context(get_libheif().context_alloc());
  VLMTRAIN_CHECK(context != nullptr, "cannot create a libheif context: memory is exhausted");
  get_libheif().context_set_max_decoding_threads(context.get(), 0);  // images are decoded in parallel already
  return context;
}

HeifHandle get_primary_image(const HeifContext& context, const std::string& format, const std::string& name) {
  heif_image_handle* handle = nullptr;
  check_heif(get_libheif().context_get_primary_image_handle(context.get(), &handle), format, name);
  return HeifHandle(handle);
}

ImageSize get_handle_size(const HeifHandle& handle) {
  return {get_libheif().image_handle_get_height(handle.get()), get_libheif().image_handle_get_width(handle.get())};
}

// The input functions of libheif, whose `stream` is a ByteStream.

int64_t get_heif_position(void* stream) {
  return static_cast<int64_t>(static_cast<ByteStream*>(stream)->position());
}

int read_heif_bytes(void* out, size_t count, void* stream) {
  return static_cast<ByteStream*>(stream)->read({static_cast<uint8_t*>(out), count}) == count ? 0 : 1;
}

int seek_heif(int64_t position, void* stream) {
  static_cast<ByteStream*>(stream)->seek(static_cast<uint64_t>(position));
  return 0;
}

heif_reader_grow_status wait_for_heif_size(int64_t target_size, void* stream) {
  return std::cmp_less_equal(target_size, static_cast<ByteStream*>(stream)->size())
             ? heif_reader_grow_status_size_reached
             : heif_reader_grow_status_size_beyond_eof;
}

/// Decodes to interleaved RGB or RGBA with 8 bits.
HeifImage decode_handle(const HeifHandle& handle, bool has_alpha, const std::string& format, const std::string& name) {
  const HeifOptions options(get_libheif().decoding_options_alloc());
  options->convert_hdr_to_8bit = 1;
  constexpr int kStrictDecodingVersion = 3;  // of the structure that the loaded library allocates
  if (options->version >= kStrictDecodingVersion) options->strict_decoding = 1;
  heif_image* decoded_image = nullptr;
  const heif_error error =
      get_libheif().decode_image(handle.get(), &decoded_image, heif_colorspace_RGB,
                                 has_alpha ? heif_chroma_interleaved_RGBA : heif_chroma_interleaved_RGB, options.get());
  HeifImage image(decoded_image);
  check_heif(error, format, name);
  return image;
}

}  // namespace

ImageHeader read_heif_header(ByteSource& source, const std::string& format, const std::string& name) {
  const HeifContext context = make_context(format, name);
  ByteStream stream(source);
  constexpr heif_reader kReader{.reader_api_version = 1,
                                .get_position = get_heif_position,
                                .read = read_heif_bytes,
                                .seek = seek_heif,
                                .wait_for_file_size = wait_for_heif_size};
  check_heif(get_libheif().context_read_from_reader(context.get(), &kReader, &stream, nullptr), format, name);
  return {.format = ImageFormat::kHeif, .stored_size = get_handle_size(get_primary_image(context, format, name))};
}

InterleavedPixels decode_heif(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  const std::string format = "HEIC or AVIF";
  const HeifContext context = make_context(format, name);
  check_heif(get_libheif().context_read_from_memory_without_copy(context.get(), bytes.data(), bytes.size(), nullptr),
             format, name);
  const HeifHandle handle = get_primary_image(context, format, name);
  const bool has_alpha = get_libheif().image_handle_has_alpha_channel(handle.get()) != 0;
  const bool is_premultiplied = get_libheif().image_handle_is_premultiplied_alpha(handle.get()) != 0;
  const HeifImage image = decode_handle(handle, has_alpha, format, name);

  const ImageSize size{get_libheif().image_get_height(image.get(), heif_channel_interleaved),
                       get_libheif().image_get_width(image.get(), heif_channel_interleaved)};
  int stride = 0;
  const uint8_t* const plane = get_libheif().image_get_plane_readonly(image.get(), heif_channel_interleaved, &stride);
  if (plane == nullptr || size != stored_size || get_handle_size(handle) != stored_size) {
    throw data_error(
        "{}: a HEIC or AVIF whose headers contain two different sizes; replace the file or drop the sample", name);
  }
  InterleavedPixels pixels(size, has_alpha ? 4 : 3);
  for (int64_t y = 0; y < size.height; ++y) {
    std::copy_n(plane + y * stride, pixels.row_bytes(), &pixels.samples[y * pixels.row_bytes()]);
  }
  if (!has_alpha) return pixels;
  if (is_premultiplied) unpremultiply_alpha(pixels);
  return composite_on_white(pixels);
}

}  // namespace vlmtrain::image
