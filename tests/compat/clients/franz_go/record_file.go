package main

// The record file of clients/python/record_file.py, for Go.

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func readRecords(path, topic string) (records []*kgo.Record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	int32At := func() int32 {
		value := int32(binary.BigEndian.Uint32(data))
		data = data[4:]
		return value
	}
	int64At := func() int64 {
		value := int64(binary.BigEndian.Uint64(data))
		data = data[8:]
		return value
	}
	bytesAt := func() []byte {
		length := int32At()
		if length < 0 {
			return nil
		}
		value := data[:length:length]
		data = data[length:]
		return value
	}
	for len(data) > 0 {
		record := &kgo.Record{Topic: topic, Partition: int32At(), Offset: int64At()}
		record.Timestamp = time.UnixMilli(int64At())
		record.Key, record.Value = bytesAt(), bytesAt()
		for count := int32At(); count > 0; count-- {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(bytesAt()), Value: bytesAt()})
		}
		records = append(records, record)
	}
	return records, nil
}

func writeRecords(path string, records []*kgo.Record) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	for _, record := range records {
		putInt32(out, record.Partition)
		putInt64(out, record.Offset)
		putInt64(out, record.Timestamp.UnixMilli())
		putBytes(out, record.Key)
		putBytes(out, record.Value)
		putInt32(out, int32(len(record.Headers)))
		for _, header := range record.Headers {
			putBytes(out, []byte(header.Key))
			putBytes(out, header.Value)
		}
	}
	return out.Flush()
}

func putInt32(out io.Writer, value int32) {
	out.Write(binary.BigEndian.AppendUint32(nil, uint32(value)))
}

func putInt64(out io.Writer, value int64) {
	out.Write(binary.BigEndian.AppendUint64(nil, uint64(value)))
}

func putBytes(out io.Writer, data []byte) {
	if data == nil {
		putInt32(out, -1)
		return
	}
	putInt32(out, int32(len(data)))
	out.Write(data)
}
