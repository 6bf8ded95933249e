"""What a run needs beside the method: exact resume, the Hub, vLLM servers, quantized bases."""
