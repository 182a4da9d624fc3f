"""Fine-tunes vision-language models and plans their memory. The program itself is C++: `vlmtrain --help`."""
