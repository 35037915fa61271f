"""What tests share: fakes, drives, arrays, pages, records."""
